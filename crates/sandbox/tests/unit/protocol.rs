use std::os::unix::ffi::OsStringExt;

use proptest::prelude::*;

use super::*;

fn program_spec(argv: Vec<OsString>) -> ProgramSpec {
    ProgramSpec {
        argv,
        folder: "/workspace".into(),
        env: vec![("A".into(), OsString::from_vec(vec![0xff, b'=']))],
        network: false,
        limits: Limits::default(),
        files: FileAccess::Workspace,
        workspace: "/workspace".into(),
        readable: vec![],
        hidden: vec![],
        confined: true,
        counted: false,
    }
}

#[test]
fn a_message_and_its_pipes_arrive() {
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let pipes = [null.as_fd(), writer.as_fd(), null.as_fd()];
    send_with_pipes(
        &mut here,
        &HelperRequest::Become(program_spec(vec!["a".into(), OsString::from_vec(vec![0xfe])])),
        pipes,
    )
    .unwrap();
    let (request, [_, received_writer, _]) = receive_with_pipes::<HelperRequest>(&mut there).unwrap();
    let HelperRequest::Become(spec) = request else { panic!("unexpected request") };
    assert_eq!(spec.argv, [OsString::from("a"), OsString::from_vec(vec![0xfe])]);
    drop(writer);
    std::fs::File::from(received_writer).write_all(b"hello").unwrap();
    assert_eq!(std::io::read_to_string(reader).unwrap(), "hello");
}

#[test]
fn the_end_of_the_other_side_is_no_message() {
    let (here, mut there) = UnixStream::pair().unwrap();
    drop(here);
    assert!(receive::<HelperResponse>(&mut there).unwrap().is_none());
    assert!(receive_with_pipes::<HelperRequest>(&mut there).is_err());
}

#[test]
fn a_message_without_pipes_is_none_to_run() {
    let (mut here, mut there) = UnixStream::pair().unwrap();
    send(&mut here, &HelperRequest::Hold(program_spec(vec![]))).unwrap();
    assert!(receive_with_pipes::<HelperRequest>(&mut there).is_err());
}

#[test]
fn no_message_makes_room_for_what_never_comes() {
    assert!(decode::<HelperResponse>(&u32::MAX.to_be_bytes()).is_err());
}

proptest! {
    #[test]
    fn messages_are_read_however_they_are_cut(code: i32, cut in 0_usize..100) {
        let response = HelperResponse::Ended(ExitStatus::Exited(code));
        let bytes = [encode(&response).unwrap(), encode(&response).unwrap()].concat();
        let (first, _) = bytes.split_at(cut.min(bytes.len()));
        let message_length = bytes.len() / 2;
        let decoded = decode::<HelperResponse>(first).unwrap();
        prop_assert_eq!(decoded, (first.len() >= message_length).then_some((response, message_length)));
    }

    #[test]
    fn no_bytes_break_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = decode::<HelperResponse>(&bytes);
    }
}
