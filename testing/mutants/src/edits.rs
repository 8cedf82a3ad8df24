//! Applies the edits of one file.

use std::ops::Range;

use crate::definitions::{Edit, Mutant};

/// An edit whose text was found in its file.
struct PlacedEdit<'a> {
    range: Range<usize>,
    mutant: &'a str,
    edit: &'a Edit,
}

/// Returns `source`, the content of `file`, with all edits of that file.
///
/// # Errors Each edit whose text does not occur exactly once, or overlaps another's.
pub(crate) fn apply(file: &str, source: &str, mutants: &[Mutant]) -> Result<String, Vec<String>> {
    let (mut placed, mut problems) = (Vec::new(), Vec::new());
    for mutant in mutants {
        for edit in mutant.edits.iter().filter(|edit| edit.file == file) {
            let starts: Vec<usize> = source.match_indices(&edit.find).map(|(start, _)| start).collect();
            match *starts {
                [start] => {
                    let range = start..start + edit.find.len();
                    placed.push(PlacedEdit { range, mutant: &mutant.name, edit });
                }
                [] => problems.push(problem(&mutant.name, edit, "this text is not found")),
                _ => {
                    let what = format!("this text is found {} times, but must be unique", starts.len());
                    problems.push(problem(&mutant.name, edit, &what));
                }
            }
        }
    }
    placed.sort_by_key(|placed| placed.range.start);

    let (mut mutated, mut end, mut previous) = (String::new(), 0, "");
    for PlacedEdit { range, mutant, edit } in placed {
        // There is no such part if the text of the previous edit reaches into this one's.
        let Some(unchanged) = source.get(end..range.start) else {
            let what = format!("this text overlaps one of mutant {previous}");
            problems.push(problem(mutant, edit, &what));
            continue;
        };
        mutated.push_str(unchanged);
        mutated.push_str(&edit.replace.replace("{find}", &edit.find));
        (end, previous) = (range.end, mutant);
    }
    mutated.push_str(source.get(end..).unwrap_or_default());
    if problems.is_empty() { Ok(mutated) } else { Err(problems) }
}

fn problem(mutant: &str, edit: &Edit, what: &str) -> String {
    format!("mutant {mutant}: {}: {what}:\n{}", edit.file, edit.find)
}

#[cfg(test)]
#[path = "../tests/unit/edits.rs"]
mod tests;
