use proptest::prelude::*;

use super::*;

fn process(pid: i32, parent: i32) -> Process {
    Process { pid, parent, threads: 1, cpu_ticks: 0, start_ticks: 0, resident_pages: 0 }
}

#[test]
fn a_process_is_read_whatever_its_name() {
    let stat = |name: &str| {
        format!(
            "42 ({name}) S 7 42 42 0 -1 4194560 100 0 0 0 11 22 0 0 20 0 3 0 12345 1000000 250 18446744073709551615 1"
        )
    };
    let expected =
        Process { pid: 42, parent: 7, threads: 3, cpu_ticks: 33, start_ticks: 12345, resident_pages: 250 };
    for name in ["sleep", "a b", ") S 1 1 (", "", "((", "))"] {
        assert_eq!(Process::parse(&stat(name)), Some(expected), "{name}");
    }
    assert_eq!(Process::parse("42 (sleep) S 7"), None);
    assert_eq!(Process::parse(""), None);
}

#[test]
fn this_process_can_be_read() {
    let own = i32::try_from(std::process::id()).unwrap();
    let process = Process::read(own).unwrap();
    assert_eq!(process.pid, own);
    assert!(process.resident_pages > 0 && process.threads > 0);
    assert!(proportional_memory(own).unwrap() > 0);
}

#[test]
fn a_child_is_found_both_ways() {
    let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let own = std::process::id();
    let has = |found: Vec<Process>| found.iter().any(|process| process.pid == pid);
    let (by_children, by_parents) = (has(list_by_children(own, usize::MAX)), has(list_by_parents(own)));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(by_children && by_parents);
}

proptest! {
    #[test]
    fn descendants_are_those_whose_line_leads_here(parents in prop::collection::vec(0_i32..30, 30)) {
        // The parent of process n has a lower id, so there are no cycles; process 0 has no parent.
        let all: Vec<Process> =
            parents.iter().enumerate().skip(1).map(|(pid, parent)| {
                let pid = i32::try_from(pid).unwrap();
                process(pid, parent % pid)
            }).collect();
        let found: HashSet<i32> = descendants_of(5, &all).iter().map(|process| process.pid).collect();
        for start in &all {
            let mut ancestor = Some(start.parent);
            let mut descends = false;
            while let Some(pid) = ancestor {
                descends |= pid == 5;
                ancestor = all.iter().find(|process| process.pid == pid).map(|process| process.parent);
            }
            prop_assert_eq!(found.contains(&start.pid), descends && start.pid != 5);
        }
    }

    #[test]
    fn no_text_breaks_the_reader(text in "\\PC{0,200}") {
        let _ = Process::parse(&text);
    }
}
