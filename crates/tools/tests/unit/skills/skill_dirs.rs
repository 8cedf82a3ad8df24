//! Tests of the skill folders: their content, their lifetime, and what is never touched.

use api::skills::SkillDefinition;
use api::{SkillName, Timestamp};
use testkit::with_deadline;

use super::*;

/// Opens a brain with this file name in a folder, and the skill folders beside it.
fn open(home: &Path, brain: &str) -> (Brain, Arc<SkillDirs>) {
    let file = home.join(brain);
    (Brain::open(&file).unwrap(), Arc::new(SkillDirs::for_brain(&file)))
}

/// Stores a new version of the skill, with this script.
async fn put(brain: &Brain, name: &str, script: &str) {
    let scripts = BTreeMap::from([("run.sh".to_owned(), script.to_owned())]);
    let at = Timestamp::from_unix_ms(0);
    let skill = CustomSkill {
        name: SkillName::new(name).unwrap(),
        definition: SkillDefinition { scripts, ..SkillDefinition::default() },
        created_at: at,
        updated_at: at,
    };
    delete(brain, name).await;
    with_deadline(brain.write(move |rows| rows.create_skill(&skill))).await.unwrap().unwrap();
}

async fn delete(brain: &Brain, name: &str) {
    let name = name.to_owned();
    with_deadline(brain.write(move |rows| rows.delete_skill(&name))).await.unwrap();
}

fn acquire(brain: &Brain, skill_dirs: &Arc<SkillDirs>, name: &str) -> LeasedSkill {
    skill_dirs.acquire(brain, name).unwrap().unwrap()
}

/// Releases a lease at once: without a runtime nobody else does it.
fn release(leased: LeasedSkill) {
    std::thread::spawn(|| drop(leased)).join().unwrap();
}

fn script(leased: &LeasedSkill) -> String {
    fs::read_to_string(leased.folder.join("scripts/run.sh")).unwrap()
}

fn count_dirs(folder: &Path) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}

/// Waits until this many folders are left: a dropped lease is released in the background.
async fn wait_for_dirs(skill_dirs: &SkillDirs, number: usize) {
    with_deadline(async {
        while count_dirs(skill_dirs.root()) != number {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_folder_is_as_the_skill_is_now() {
    let home = tempfile::tempdir().unwrap();
    let (brain, skill_dirs) = open(home.path(), "brain.sqlite");
    let folder = home.path().join("brain.sqlite.skills");
    assert!(skill_dirs.root() == folder && !folder.exists());
    put(&brain, "greet", "#!/bin/sh\necho 1").await;
    let first = acquire(&brain, &skill_dirs, "greet");
    assert!(first.folder.ends_with("greet") && first.folder.starts_with(&folder));
    assert_eq!(script(&first), "#!/bin/sh\necho 1");
    let mode = fs::metadata(first.folder.join("scripts/run.sh")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    assert_eq!(acquire(&brain, &skill_dirs, "greet").folder, first.folder);
    drop(first);
    put(&brain, "greet", "echo 2").await;
    let second = acquire(&brain, &skill_dirs, "greet");
    assert_eq!(script(&second), "echo 2");
    wait_for_dirs(&skill_dirs, 1).await;
    // Another skill with the same scripts has a folder of its own.
    put(&brain, "other", "echo 2").await;
    let other = acquire(&brain, &skill_dirs, "other");
    assert!(other.folder.ends_with("other") && second.folder.exists());
    drop(second);
    skill_dirs.invalidate("greet");
    skill_dirs.invalidate("greet");
    wait_for_dirs(&skill_dirs, 1).await;
    // It stays without a lease, for the next program.
    let stays = other.folder.clone();
    release(other);
    assert!(stays.exists());
}

#[tokio::test]
async fn a_folder_stays_as_long_as_it_is_used() {
    let home = tempfile::tempdir().unwrap();
    let (brain, skill_dirs) = open(home.path(), "brain.sqlite");
    put(&brain, "greet", "echo 1").await;
    let [first, again] = [(); 2].map(|()| acquire(&brain, &skill_dirs, "greet"));
    put(&brain, "greet", "echo 2").await;
    skill_dirs.invalidate("greet");
    let second = acquire(&brain, &skill_dirs, "greet");
    delete(&brain, "greet").await;
    skill_dirs.invalidate("greet");
    assert!(
        skill_dirs.acquire(&brain, "greet").unwrap().is_none(),
        "a skill that is gone is not laid out again"
    );
    assert_eq!([&first, &again, &second].map(script), ["echo 1", "echo 1", "echo 2"]);
    // A previous version can become current again while its folder still exists.
    put(&brain, "greet", "echo 1").await;
    let third = acquire(&brain, &skill_dirs, "greet");
    assert_eq!(third.folder, first.folder);
    release(second);
    assert_eq!(count_dirs(skill_dirs.root()), 1);
    release(first);
    skill_dirs.invalidate("greet");
    release(third);
    assert_eq!(script(&again), "echo 1");
    release(again);
    assert_eq!(count_dirs(skill_dirs.root()), 0);
    // A folder whose skill was changed or deleted without invalidation is removed at the next request for the
    // skill.
    release(acquire(&brain, &skill_dirs, "greet"));
    delete(&brain, "greet").await;
    assert!(skill_dirs.acquire(&brain, "greet").unwrap().is_none());
    assert_eq!(count_dirs(skill_dirs.root()), 0);
}

#[tokio::test]
async fn what_an_earlier_run_left_is_not_trusted() {
    let home = tempfile::tempdir().unwrap();
    let (brain, before) = open(home.path(), "brain.sqlite");
    put(&brain, "greet", "echo 1").await;
    let leased = acquire(&brain, &before, "greet");
    let more = leased.folder.join("scripts/more.sh");
    fs::write(leased.folder.join("scripts/run.sh"), "echo forged").unwrap();
    fs::write(&more, "echo more").unwrap();
    fs::create_dir_all(before.root().join(STAGING_DIR).join("half")).unwrap();
    let force_new = || Arc::new(SkillDirs::for_brain(&home.path().join("brain.sqlite")));
    let skill_dirs = force_new();
    let again = acquire(&brain, &skill_dirs, "greet");
    assert_eq!((&again.folder, script(&again).as_str()), (&leased.folder, "echo 1"));
    assert!(!more.exists() && count_dirs(skill_dirs.root()) == 1);
    // Nor does a folder outlive its skill.
    force_new().invalidate("greet");
    assert_eq!(count_dirs(skill_dirs.root()), 0);
}

#[tokio::test]
async fn what_is_somebody_elses_stays() {
    let home = tempfile::tempdir().unwrap();
    let (brain, skill_dirs) = open(home.path(), "brain.sqlite");
    let (other_brain, other_shelf) = open(home.path(), "other.sqlite");
    let hash = "0123456789abcdef0123456789abcdef";
    let theirs = ["skills/forms/SKILL.md", "skills/forms/scripts/a.sh"].map(|file| home.path().join(file));
    let beside = ["notes", &hash[1..], &hash.to_uppercase(), ".unfinished-work", &format!("{hash}.d")]
        .map(|name| skill_dirs.root().join(name).join("file"));
    let kept: Vec<_> = theirs.into_iter().chain(beside).collect();
    for file in kept.iter().chain([&skill_dirs.root().join(hash).join("file")]) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "theirs").unwrap();
    }
    put(&other_brain, "greet", "echo other").await;
    let other = acquire(&other_brain, &other_shelf, "greet");
    put(&brain, "greet", "echo 1").await;
    release(acquire(&brain, &skill_dirs, "greet"));
    skill_dirs.invalidate("greet");
    assert_eq!(count_dirs(skill_dirs.root()), 5);
    for file in &kept {
        assert_eq!(fs::read_to_string(file).unwrap(), "theirs", "{}", file.display());
    }
    assert_eq!(script(&other), "echo other");
}
