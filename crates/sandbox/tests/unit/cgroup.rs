use super::*;

/// Creates folders and files that imitate a cgroup hierarchy.
fn hierarchy(folders: &[&str], files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for folder in folders {
        fs::create_dir_all(root.path().join(folder)).unwrap();
    }
    for (name, text) in files {
        fs::write(root.path().join(name), text).unwrap();
    }
    root
}

#[test]
fn the_first_version_is_found_by_its_controller() {
    let root = hierarchy(&["pids/docker/abc", "memory"], &[]);
    let own = "12:memory:/\n8:pids:/docker/abc\n0::/\n";
    assert_eq!(pids_hierarchy(own, root.path()), Some(root.path().join("pids/docker/abc")));
}

#[test]
fn the_second_version_must_hand_the_controller_down() {
    let root = hierarchy(&["unit"], &[("unit/cgroup.subtree_control", "memory\n")]);
    assert_eq!(pids_hierarchy("0::/unit\n", root.path()), None);
    fs::write(root.path().join("unit/cgroup.subtree_control"), "memory pids\n").unwrap();
    assert_eq!(pids_hierarchy("0::/unit\n", root.path()), Some(root.path().join("unit")));
}

#[test]
fn where_there_is_none_there_is_none() {
    let root = hierarchy(&[], &[]);
    for own in ["", "8:pids:/gone\n", "0::/gone\n", "nonsense", "0::", ":::::"] {
        assert_eq!(pids_hierarchy(own, root.path()), None, "{own}");
    }
}

#[test]
fn what_a_killed_helper_left_is_removed() {
    let own = format!("sandbox-{}", std::process::id());
    let root =
        hierarchy(&["sandbox-999999999", &own, "another", "sandbox-999999998/child", "leash-999999997"], &[]);
    remove_abandoned(root.path());
    let mut left: Vec<_> = fs::read_dir(root.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    let mut expected = ["another", own.as_str(), "sandbox-999999998"];
    expected.sort_unstable();
    assert_eq!(left, expected);
}
