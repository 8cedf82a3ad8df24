use super::*;

#[test]
fn writable_mounts_are_told_with_what_holds_for_them() {
    let mountinfo = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /proc ro,nosuid,nodev,noexec - proc proc rw
24 22 0:22 / /with\\040blank rw,nosuid,nodev,noexec,noatime - tmpfs tmpfs rw
nonsense
";
    let expected = [
        Mount { point: "/".into(), flags: MountFlags::RELATIME },
        Mount {
            point: "/with blank".into(),
            flags: MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME,
        },
    ];
    assert_eq!(writable_mounts(mountinfo), expected);
}
