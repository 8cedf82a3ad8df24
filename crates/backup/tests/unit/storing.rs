//! Backups in a store: what is stored again, what can be read of it, and what happens to damaged ones.

use http_service::vault::MasterKey;
use pretty_assertions::assert_eq;

use super::{Fixture, engine, noise, stream};
use crate::{BackupError, Owner, Retention, Store};

const DAY_MS: i64 = 86_400_000;

fn small() -> Vec<u8> {
    stream(b"a brain that is small", &[("notes.txt", b"remember the milk".to_vec())])
}

#[tokio::test]
async fn a_backup_is_read_as_it_was_written() {
    let fixture = Fixture::new().await;
    let owner = engine();
    let content = stream(&noise(1, 3_000_000), &[("a", noise(2, 70_000)), ("b", vec![0; 500_000])]);
    let written = fixture.back_up(owner, DAY_MS, &content).await;
    assert_eq!((written.entries, written.bytes), (4, 3_570_000));
    // Zeros compress.
    assert!(written.stored_bytes < 3_200_000, "{written:?}");
    assert_eq!(fixture.read(owner, None).await.unwrap(), content);
    let latest = fixture.latest(owner).await;
    assert_eq!(fixture.read(owner, Some(latest)).await.unwrap(), content);
    let (id, summary) = fixture.store.verify(owner, None).await.unwrap();
    assert_eq!((id, summary.bytes), (latest, 3_570_000));
    // Another process with the same key reads it, too.
    let again = Store::open_objects(fixture.objects.clone(), &fixture.master, false).await.unwrap();
    assert_eq!(again.list(owner).await.unwrap()[0].program, "1.2.3");
}

#[tokio::test]
async fn only_what_has_changed_is_stored_again() {
    let fixture = Fixture::new().await;
    let owner = engine();
    let mut brain = noise(1, 4_000_000);
    let files: Vec<_> = (0..200).map(|file| (format!("file-{file:03}"), noise(file, 3_000))).collect();
    let files = |more: &[&str]| {
        let mut files = files.clone();
        files.extend(more.iter().map(|name| ((*name).to_owned(), noise(9_999, 3_000))));
        files.sort();
        files
    };
    let make = |brain: &[u8], files: &[(String, Vec<u8>)]| {
        let files: Vec<_> = files.iter().map(|(name, content)| (name.as_str(), content.clone())).collect();
        stream(brain, &files)
    };
    let first = fixture.back_up(owner, DAY_MS, &make(&brain, &files(&[]))).await;
    let same = fixture.back_up(owner, 2 * DAY_MS, &make(&brain, &files(&[]))).await;
    assert_eq!((same.new_pieces, same.pieces), (0, first.pieces));
    // One page.
    brain[2_000_000] ^= 1;
    let page = fixture.back_up(owner, 3 * DAY_MS, &make(&brain, &files(&[]))).await;
    // The piece with the page, and the end with the digest.
    assert_eq!(page.new_pieces, 2);
    // A new file between others changes the pieces around it, not those after it.
    let content = make(&brain, &files(&["file-100-new"]));
    let new_file = fixture.back_up(owner, 4 * DAY_MS, &content).await;
    assert!(new_file.new_pieces <= 4, "{new_file:?}");
    assert_eq!(fixture.read(owner, None).await.unwrap(), content);
    // Nothing is shared with another user's engine, whatever it holds.
    let other = fixture.back_up(engine(), 5 * DAY_MS, &content).await;
    assert_eq!(other.new_pieces, other.pieces);
}

#[tokio::test]
async fn nothing_in_the_store_says_whose_it_is_or_what_it_is() {
    let fixture = Fixture::new().await;
    let owner = engine();
    let brain = b"The user's secret is FOXGLOVE. ".repeat(3_000);
    let content = stream(&brain, &[("diary-of-alice.txt", b"FOXGLOVE".repeat(500))]);
    fixture.back_up(owner, DAY_MS, &content).await;
    fixture.back_up(owner, 2 * DAY_MS, &content).await;
    let id = owner.to_string();
    let words = [b"FOXGLOVE".as_slice(), b"diary", b"alice", b"1.2.3", id.as_bytes(), &id.as_bytes()[4..]];
    for name in fixture.names().await {
        let object = fixture.object(&name).await;
        for word in words {
            let found = |text: &[u8]| text.windows(word.len()).any(|part| part == word);
            assert!(
                !found(name.as_bytes()) && !found(&object),
                "{name} has {}",
                String::from_utf8_lossy(word)
            );
        }
        // Nothing to compress: what is sealed looks random.
        let mut counts = [0_usize; 256];
        object.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        let most = counts.iter().max().unwrap();
        assert!(object.len() < 2_000 || *most < object.len() / 64, "{name} is not random");
    }
}

/// Damages the objects of a backup in every way, and reads it again: the error has to name the object.
#[tokio::test]
async fn every_flipped_byte_and_every_cut_of_every_object_is_an_error() {
    let fixture = Fixture::new().await;
    let owner = engine();
    fixture.back_up(owner, DAY_MS, &small()).await;
    let mut tried = 0;
    for name in fixture.names().await {
        let object = fixture.object(&name).await;
        let cuts = (0..object.len()).step_by(7).map(|length| object[..length].to_vec());
        let flips = (0..object.len()).map(|at| {
            let mut flipped = object.to_vec();
            flipped[at] ^= 1 << (at % 8);
            flipped
        });
        let longer = [object.to_vec(), vec![0]].concat();
        for damaged in cuts.chain(flips).chain([longer, Vec::new()]) {
            fixture.replace(&name, damaged).await;
            let opened = Store::open_objects(fixture.objects.clone(), &fixture.master, true).await;
            let read = match opened {
                Ok(store) => store.verify(owner, None).await.map(drop),
                Err(error) => Err(error),
            };
            match read {
                Err(BackupError::Damaged { object, .. }) => assert_eq!(object, name),
                // Of the byte with the version, and of those that tell master keys apart.
                Err(BackupError::NewerFormat { .. } | BackupError::WrongMasterKey) => {}
                other => panic!("{name}: {other:?}"),
            }
            tried += 1;
        }
        fixture.replace(&name, object).await;
    }
    assert!(tried > 500, "{tried}");
    fixture.store.verify(owner, None).await.unwrap();
}

#[tokio::test]
async fn every_missing_object_is_named() {
    let fixture = Fixture::new().await;
    let owner = engine();
    let content = stream(&noise(1, 700_000), &[]);
    fixture.back_up(owner, DAY_MS, &content).await;
    for name in fixture.names().await {
        let object = fixture.object(&name).await;
        object_store::ObjectStoreExt::delete(
            &fixture.objects,
            &object_store::path::Path::from(name.as_str()),
        )
        .await
        .unwrap();
        let opened = Store::open_objects(fixture.objects.clone(), &fixture.master, true).await;
        let read = match opened {
            Ok(store) => store.verify(owner, None).await.map(drop),
            Err(error) => Err(error),
        };
        match (&name[..2], read) {
            ("k/" | "m/", Err(BackupError::NotFound)) => {}
            (_, Err(BackupError::Missing { object })) => assert_eq!(object, name),
            (_, other) => panic!("{name}: {other:?}"),
        }
        fixture.replace(&name, object).await;
    }
    assert_eq!(fixture.read(owner, None).await.unwrap(), content);
}

/// Every object of one engine in the place of every other of the same kind.
#[tokio::test]
async fn objects_that_were_exchanged_are_noticed() {
    let fixture = Fixture::new().await;
    let (owner, other) = (engine(), engine());
    fixture.back_up(owner, DAY_MS, &stream(&noise(1, 700_000), &[])).await;
    fixture.back_up(owner, 2 * DAY_MS, &stream(&noise(2, 700_000), &[])).await;
    fixture.back_up(other, DAY_MS, &small()).await;
    let names = fixture.names().await;
    let mut exchanged = 0;
    for name in names.iter().filter(|name| *name != "root") {
        let object = fixture.object(name).await;
        for from in names.iter().filter(|from| from != &name && from[..2] == name[..2]) {
            fixture.replace(name, fixture.object(from).await).await;
            let mut failed = 0;
            for owner in [owner, other] {
                for id in fixture.store.ids(owner).await.unwrap() {
                    failed += usize::from(fixture.store.verify(owner, Some(id)).await.is_err());
                }
            }
            assert!(failed > 0, "{from} in the place of {name}");
            exchanged += 1;
        }
        fixture.replace(name, object).await;
    }
    assert!(exchanged > 20, "{exchanged}");
}

#[tokio::test]
async fn a_stream_that_is_cut_off_leaves_no_backup() {
    let fixture = Fixture::new().await;
    let owner = engine();
    let content = stream(&noise(1, 700_000), &[]);
    for length in [0, 1, 100_000, content.len() - 1] {
        assert!(fixture.try_back_up(owner, DAY_MS, &content[..length]).await.is_err());
        assert_eq!(fixture.store.ids(owner).await.unwrap(), []);
    }
    // A backup that may not be committed, because another process has taken over.
    let id = crate::BackupId::new(api::Timestamp::from_unix_ms(1), false).unwrap();
    let mut writer = crate::BackupWriter::begin(fixture.store.clone(), owner, false).await.unwrap();
    writer.push(&content).await.unwrap();
    let refused = writer.finish(id, std::future::ready(Err(BackupError::NotFound))).await;
    assert!(matches!(refused, Err(BackupError::NotFound)));
    assert_eq!(fixture.store.ids(owner).await.unwrap(), []);
}

#[tokio::test]
async fn another_master_key_reads_nothing_until_the_root_key_is_sealed_under_it() {
    let fixture = Fixture::new().await;
    let owner = engine();
    fixture.back_up(owner, DAY_MS, &small()).await;
    let new = MasterKey::generate().unwrap();
    let objects = &fixture.objects;
    let open = async |master: &MasterKey| Store::open_objects(objects.clone(), master, true).await;
    assert!(matches!(open(&new).await, Err(BackupError::WrongMasterKey)));
    let reseal =
        async |old: &MasterKey, new: &MasterKey| crate::store::reseal_objects(objects, old, new).await;
    let wrong = MasterKey::generate().unwrap();
    assert!(matches!(reseal(&wrong, &new).await, Err(BackupError::WrongMasterKey)));
    assert!(reseal(&fixture.master, &new).await.unwrap());
    // Once more, as after a kill.
    assert!(!reseal(&fixture.master, &new).await.unwrap());
    assert!(matches!(open(&fixture.master).await, Err(BackupError::WrongMasterKey)));
    open(&new).await.unwrap().verify(owner, None).await.unwrap();
}

#[tokio::test]
async fn expired_backups_go_and_the_pieces_of_the_others_stay() {
    let fixture = Fixture::new().await;
    let owner = engine();
    // In memory, objects are as old as they are: the clock of the collection is ahead by years.
    let now = || api::Timestamp::from_unix_ms(4_000_000_000_000);
    fixture.back_up(owner, DAY_MS, &stream(&noise(1, 700_000), &[("kept", noise(3, 100_000))])).await;
    let first = fixture.latest(owner).await;
    let second = stream(&noise(2, 700_000), &[("kept", noise(3, 100_000))]);
    fixture.back_up(owner, 2 * DAY_MS, &second).await;
    let all =
        fixture.store.collect(owner, Retention { keep_last: 2, keep_days: 0 }, now(), true).await.unwrap();
    assert_eq!((all.backups, all.pieces), (0, 0));
    let one = Retention { keep_last: 1, keep_days: 0 };
    // A backup that cannot be read keeps all pieces: they may be its own.
    let latest = fixture.names().await.into_iter().filter(|name| name.starts_with("m/")).max().unwrap();
    let object = fixture.object(&latest).await;
    fixture.replace(&latest, object.slice(1..)).await;
    assert!(fixture.store.collect(owner, one, now(), true).await.is_err());
    fixture.replace(&latest, object).await;
    assert_eq!(fixture.read(owner, None).await.unwrap(), second);
    // Young pieces are kept: they may belong to a backup that is being made.
    let young =
        fixture.store.collect(owner, one, api::Timestamp::from_unix_ms(3 * DAY_MS), true).await.unwrap();
    assert_eq!(young.pieces, 0);
    let collected = fixture.store.collect(owner, one, now(), true).await.unwrap();
    assert!(collected.pieces >= 3 && collected.bytes > 600_000, "{collected:?}");
    assert!(matches!(fixture.read(owner, Some(first)).await, Err(BackupError::NotFound)));
    assert_eq!(fixture.read(owner, None).await.unwrap(), second);
}

#[tokio::test]
async fn an_erased_engine_leaves_nothing_and_the_others_stay() {
    let fixture = Fixture::new().await;
    let (owner, other) = (engine(), engine());
    fixture.back_up(other, DAY_MS, &small()).await;
    // Root, and key, manifest and pieces of the other. How many pieces there are differs with the keys.
    let of_other = fixture.names().await;
    fixture.back_up(owner, DAY_MS, &small()).await;
    fixture.store.erase(owner).await.unwrap();
    fixture.store.erase(owner).await.unwrap();
    assert!(matches!(fixture.read(owner, None).await, Err(BackupError::NotFound)));
    assert!(fixture.store.list(owner).await.unwrap().is_empty());
    assert_eq!(fixture.read(other, None).await.unwrap(), small());
    assert_eq!(fixture.names().await, of_other);
    // The registry's are like an engine's.
    fixture.back_up(Owner::Registry, DAY_MS, &small()).await;
    assert_eq!(fixture.read(Owner::Registry, None).await.unwrap(), small());
}
