//! An engine's folder that cannot be created or used.

use std::os::unix::fs::symlink;

use super::super::*;
use super::support::{Fixture, new_backend, target_of};

#[tokio::test]
async fn regression_o18_a_folder_that_cannot_be_made_is_said_and_nothing_is_left() {
    let Some(fixture) = Fixture::new().await else { return };
    let file = fixture.folder().join("file");
    std::fs::write(&file, "in the way").unwrap();
    // Nobody can create a folder in either of them, not even root.
    for root in [file.join("engines"), PathBuf::from("/proc/roundhouse/engines")] {
        let backend = new_backend(&fixture.with(|options| options.data_root.clone_from(&root)));
        let error = backend.launch(fixture.launch()).await.unwrap_err();
        let is_named =
            matches!(&error, BackendError::Failed(reason) if reason.contains("folder cannot be used"));
        assert!(is_named, "{error}");
        assert!(!error.to_string().contains(root.to_str().unwrap()), "{error}");
        assert_eq!(fixture.containers().await, []);
    }
}

#[tokio::test]
async fn regression_o14_a_link_in_a_folders_place_is_not_followed() {
    let Some(fixture) = Fixture::new().await else { return };
    let outside = fixture.folder().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("precious"), "data").unwrap();
    symlink(&outside, fixture.options.data_root.join(fixture.engine_id.to_string())).unwrap();
    assert!(fixture.backend.launch(fixture.launch()).await.is_err());
    assert!(fixture.backend.remove_with_data(target_of(fixture.engine_id)).await.is_err());
    assert_eq!(fixture.containers().await, []);
    assert!(outside.join("precious").exists());
}
