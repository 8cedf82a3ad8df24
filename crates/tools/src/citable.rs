//! The pages that a tool's result shows, which the agent may cite by number. The engine gives the numbers,
//! because they are those of a task; a tool only says where in its text the number of each page belongs.

/// How the model is told to cite.
pub(super) const CITING_RULE: &str = "End each claim that you take from it with that number in square brackets, such \
                                      as [3]. Cite no other numbers.";

/// A page that a result shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CitablePage {
    /// The address.
    pub url: String,
    /// The title; empty if there is none.
    pub title: String,
    /// Where in the result its number belongs, in bytes.
    pub at: usize,
}

/// Inserts the number of each page into a text, at its place. `pages` are in the order of their places; one without
/// a number, or whose place is not in the text, is left as it is.
pub fn insert_numbers(text: &str, pages: &[CitablePage], numbers: &[Option<u32>]) -> String {
    let mut numbered = String::with_capacity(text.len() + pages.len() * 8);
    let mut done = 0;
    for (page, number) in pages.iter().zip(numbers) {
        let (Some(number), Some(before)) = (number, text.get(done..page.at)) else { continue };
        numbered.push_str(before);
        numbered.extend(["[", &number.to_string(), "] "]);
        done = page.at;
    }
    numbered.push_str(text.get(done..).unwrap_or_default());
    numbered
}

/// Inserts the numbers from 1 on, for a result that belongs to no task.
pub fn insert_own_numbers(text: &str, pages: &[CitablePage]) -> String {
    let numbers: Vec<_> = (1..).take(pages.len()).map(Some).collect();
    insert_numbers(text, pages, &numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(at: usize) -> CitablePage {
        CitablePage { url: "https://a.example/".into(), title: String::new(), at }
    }

    #[test]
    fn numbers_stand_where_they_belong() {
        let (text, pages) = ("über\na\nb", [page(0), page(6), page(8)]);
        assert_eq!(insert_numbers(text, &pages, &[Some(4), None, Some(12)]), "[4] über\na\n[12] b");
        assert_eq!(insert_own_numbers(text, &pages), "[1] über\n[2] a\n[3] b");
    }

    #[test]
    fn a_place_that_is_not_in_the_text_is_left_out() {
        let pages = [page(1), page(3), page(99)];
        assert_eq!(insert_own_numbers("über", &pages), "üb[2] er");
        assert_eq!(insert_own_numbers("", &[page(0)]), "[1] ");
        assert_eq!(insert_own_numbers("ab", &[page(2), page(1)]), "ab[1] ");
    }
}
