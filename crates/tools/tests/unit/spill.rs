//! Tests of long output: what the model receives, and what the spill file contains.

use proptest::prelude::*;

use super::*;
use crate::fixture::WorkspaceFixture;

async fn spool_pieces(fixture: &WorkspaceFixture, call_id: CallId, pieces: &[&[u8]]) -> String {
    let mut spool = fixture.spill_dir().spool(call_id);
    for piece in pieces {
        spool.push(piece).await;
    }
    spool.finish().await
}

#[tokio::test]
async fn what_is_short_stays_whole() {
    let fixture = WorkspaceFixture::new();
    let most = "x".repeat(MAX_INLINE_BYTES);
    assert_eq!(spool_pieces(&fixture, CallId::new(), &[most.as_bytes()]).await, most);
    assert_eq!(fixture.spill_dir().limit_text(CallId::new(), most.clone(), MAX_INLINE_BYTES).await, most);
    assert_eq!(spool_pieces(&fixture, CallId::new(), &[]).await, "");
    assert!(fixture.list_names(".").is_empty());
}

#[tokio::test]
async fn what_is_long_goes_to_a_file() {
    let fixture = WorkspaceFixture::new();
    // Both ends are cut within a character.
    let text = format!("x{}y", "ü".repeat(50_000));
    for at_once in [true, false] {
        let call_id = CallId::new();
        let output = if at_once {
            fixture.spill_dir().limit_text(call_id, text.clone(), MAX_INLINE_BYTES).await
        } else {
            spool_pieces(&fixture, call_id, &text.as_bytes().chunks(999).collect::<Vec<_>>()).await
        };
        let path = format!("tool-output/{call_id}.txt");
        let (head, tail) = ("ü".repeat(HEAD_TAIL_BYTES / 2 - 1), "ü".repeat(HEAD_TAIL_BYTES / 2 - 1));
        let cut = format!(
            "[cut: 100002 bytes came; all of it is in the file `{path}`; `read_file` reads on with `offset` and \
             `limit`. It ends:]"
        );
        assert!(output == format!("x{head}\n\n{cut}\n\n{tail}y"), "{}", output.len());
        assert!(fixture.read_file(&path) == text);
    }
}

#[tokio::test]
async fn errors_are_bounded_and_questions_left_alone() {
    let fixture = WorkspaceFixture::new();
    let long = Err(ToolError("x".repeat(100_000)));
    let output = fixture.spill_dir().limit_output(CallId::new(), long, 200_000).await.unwrap_err();
    assert!(output.0.len() < 20_000 && output.0.contains("all of it is in the file"));
    let asks = Ok(ToolStep::Ask(crate::Question { text: "x".repeat(100_000), options: None }));
    assert_eq!(fixture.spill_dir().limit_output(CallId::new(), asks.clone(), MAX_INLINE_BYTES).await, asks);
}

#[tokio::test]
async fn a_call_that_runs_again_has_one_file() {
    let fixture = WorkspaceFixture::new();
    let call_id = CallId::new();
    for text in ["a", "b"] {
        spool_pieces(&fixture, call_id, &[text.repeat(70_000).as_bytes()]).await;
    }
    assert_eq!(fixture.list_names("tool-output"), [format!("{call_id}.txt")]);
    assert_eq!(fixture.read_file(&format!("tool-output/{call_id}.txt")), "b".repeat(70_000));
}

#[tokio::test]
async fn nothing_outside_is_changed() {
    let fixture = WorkspaceFixture::new();
    let long = "x".repeat(70_000);
    fixture.create_symlink("tool-output", "..");
    let output = spool_pieces(&fixture, CallId::new(), &[long.as_bytes()]).await;
    assert!(output.contains("it could not be kept in a file") && output.contains("leads out"), "{output}");
    std::fs::remove_file(fixture.path("tool-output")).unwrap();
    // Whatever is at the file's path is replaced, never followed.
    let call_id = CallId::new();
    fixture.write_file("tool-output/other", "");
    fixture.create_symlink(&format!("tool-output/{call_id}.txt"), "../../secret");
    spool_pieces(&fixture, call_id, &[long.as_bytes()]).await;
    assert_eq!(fixture.read_file(&format!("tool-output/{call_id}.txt")), long);
    let call_id = CallId::new();
    std::fs::create_dir(fixture.path(&format!("tool-output/{call_id}.txt"))).unwrap();
    let output = spool_pieces(&fixture, call_id, &[long.as_bytes()]).await;
    assert!(output.contains("it could not be kept in a file") && output.len() < 20_000, "{output}");
    fixture.assert_outside_unchanged();
}

#[tokio::test]
async fn the_oldest_files_go() {
    let fixture = WorkspaceFixture::new();
    fixture.write_file("tool-output/notes.txt", "of somebody else");
    let mut calls = Vec::new();
    for number in 0..MAX_FILES + 3 {
        let call_id = CallId::new();
        if number < MAX_FILES {
            fixture.write_file(&format!("tool-output/{call_id}.txt"), "x");
        } else {
            spool_pieces(&fixture, call_id, &[&vec![b'x'; 70_000]]).await;
        }
        calls.push(call_id);
    }
    let mut expected: Vec<_> = calls[3..].iter().map(|call| format!("{call}.txt")).collect();
    expected.push("notes.txt".into());
    assert_eq!(fixture.list_names("tool-output"), expected);
    // Large files are evicted sooner. This one only appears to be large.
    let large = std::fs::File::create(fixture.path(&format!("tool-output/{}.txt", calls[20]))).unwrap();
    large.set_len(MAX_TOTAL_BYTES).unwrap();
    spool_pieces(&fixture, CallId::new(), &[&vec![b'x'; 70_000]]).await;
    assert_eq!(fixture.list_names("tool-output").len(), MAX_FILES + 3 - 21 + 2);
}

#[tokio::test]
async fn many_small_files_are_kept_and_one_that_is_gone_says_so() {
    let fixture = WorkspaceFixture::new();
    let calls: Vec<CallId> = (0..200).map(|_| CallId::new()).collect();
    for call_id in &calls {
        spool_pieces(&fixture, *call_id, &[&vec![b'x'; MAX_INLINE_BYTES + 1]]).await;
    }
    assert_eq!(fixture.list_names("tool-output").len(), calls.len());
    let first = format!("tool-output/{}.txt", calls[0]);
    let read = async || fixture.workspace.locate(&first).and_then(|location| location.read(u64::MAX));
    assert_eq!(read().await.map(|text| text.len()), Ok(MAX_INLINE_BYTES + 1));
    std::fs::remove_file(fixture.path(&first)).unwrap();
    let notice = read().await.unwrap_err().0;
    assert!(notice.contains("is no longer kept") && notice.contains("make the call again"), "{notice}");
    // Nothing is claimed about other files.
    let other = fixture
        .workspace
        .locate("tool-output/notes.txt")
        .and_then(|location| location.read(9))
        .unwrap_err()
        .0;
    assert!(other.contains("there is no such file"), "{other}");
}

proptest! {
    #[test]
    fn ends_are_whole_characters(text in "[aü€😀]{0,30}", max in 4_usize..40) {
        let bytes = text.as_bytes();
        for end in [utf8_prefix(bytes, max), utf8_suffix(bytes, max)] {
            prop_assert!(std::str::from_utf8(end).is_ok() && end.len() <= max);
            prop_assert!(end.len() + 4 > max.min(bytes.len()));
        }
    }

    #[test]
    fn pieces_make_no_difference(sizes in prop::collection::vec(1_usize..30_000, 1..12), text in any::<bool>()) {
        let fixture = WorkspaceFixture::new();
        let total: usize = sizes.iter().sum();
        let byte = |at: usize| if text { b'a' + u8::try_from(at % 26).unwrap() } else { u8::try_from(at % 256).unwrap() };
        let all: Vec<u8> = (0..total).map(byte).collect();
        let mut rest = all.as_slice();
        let mut pieces = Vec::new();
        for size in sizes {
            let (piece, behind) = rest.split_at(size);
            pieces.push(piece);
            rest = behind;
        }
        let call_id = CallId::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let in_pieces = runtime.block_on(spool_pieces(&fixture, call_id, &pieces));
        prop_assert!(in_pieces == runtime.block_on(spool_pieces(&fixture, call_id, &[&all])));
    }
}
