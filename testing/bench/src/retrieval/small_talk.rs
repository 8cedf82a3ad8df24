//! Text between the facts: small talk, errands, and the agent's answers. Sentences are assembled from parts, so
//! that few of them repeat.

use super::rng::SeededRng;

/// Openers of a statement.
pub(crate) const OPENERS: &[&str] = &[
    "",
    "",
    "",
    "",
    "By the way. ",
    "Guess what. ",
    "For your notes. ",
    "I nearly forgot. ",
    "Big news. ",
    "Small update. ",
    "You will laugh. ",
    "I heard it at breakfast. ",
    "My aunt called. ",
    "Do you remember? ",
    "Between us. ",
    "I am so glad. ",
    "Fresh from the grapevine. ",
    "Before we go on. ",
];
/// Openers of a statement that supersedes an earlier one.
pub(crate) const CHANGE_OPENERS: &[&str] = &[
    "Things have changed. ",
    "Forget what I said earlier. ",
    "Correction. ",
    "That is outdated. ",
    "New situation. ",
    "It is different now. ",
    "I have to take something back. ",
];
const TAILS: &[&str] = &[
    "",
    "",
    "",
    "",
    "Anyway, back to the {thing}.",
    "The {thing} can wait.",
    "I still have the {thing} to finish.",
    "No need to do anything about it.",
    "I thought you might want that on file.",
    "We spoke for an hour.",
    "It came up over the {thing}.",
    "That was quite a week.",
    "My neighbour told me over the fence.",
    "I should write that down somewhere.",
    "Who would have thought.",
];
const ACKS: &[&str] = &[
    "Noted.",
    "Thanks for telling me.",
    "Good to know; I will keep it in mind.",
    "Got it. Shall we go on?",
    "That is nice to hear.",
    "All right, I have it.",
    "Understood. Anything else?",
    "I see. Let me know if it changes.",
    "Duly noted. Back to the {thing}?",
    "Thank you. Do you want to continue with the {thing}?",
];
/// Introductions of a person, after which a pronoun or a first name is enough.
const INTRODUCTIONS: &[&str] = &[
    "I ran into {who} at the {thing} this week.",
    "{who} rang me up just now.",
    "I owe you the latest on {who}.",
    "I had a long walk with {who}.",
    "Let me tell you about {who}.",
    "{who} stopped by with a {thing}.",
];
const MENTIONS: &[&str] = &[
    "{who} sends regards.",
    "I sat next to {who} on the bus, nothing new there.",
    "{who} asked about the {thing}.",
    "Remind me to bring {who} the {thing}.",
    "{who} was late again, as usual.",
    "{who} and I argued over the {thing}.",
    "Have I mentioned that {who} helped with the {thing}?",
    "{who} did not show up yesterday.",
    "{who} thinks the {thing} is too {quality}.",
    "I promised {who} to look into the {thing}.",
    "Draft a short thank-you note to {who} for the {thing}.",
    "{who} lent me a {quality} {thing}.",
];
/// Descriptions of a person by a relationship to somebody who is named.
const RELATIONSHIPS: &[&str] = &[
    "a neighbour",
    "an old classmate",
    "a cousin",
    "a colleague",
    "the landlord",
    "a former teammate",
    "the dentist",
    "a friend of a friend",
    "the godchild",
    "the tenant",
];
/// Requests to look up what a message said about somebody.
pub(crate) const LOOKUPS: &[&str] = &[
    "Can you check the message that came in about {who}?",
    "What did the mail say about {who}?",
    "Read me the note on {who}, please.",
    "Anything in the inbox on {who}?",
];
/// Openers of the agent's report.
pub(crate) const FINDINGS: &[&str] =
    &["It says: ", "The message reads: ", "Here it is. ", "In short: ", "I found this. "];
const UNKNOWN: &[&str] = &[
    "You have not told me.",
    "I have nothing on that.",
    "I do not know; shall I ask around?",
    "There is nothing in my notes.",
    "I am not aware of that.",
];
const ERRANDS: &[&str] = &[
    "Could you {verb} the {thing} so that it sounds less {quality}?",
    "How long does it take to {verb} a {thing}?",
    "Please {verb} the {quality} {thing} and send me the outcome.",
    "I need to {verb} a {thing} by the weekend.",
    "What would you charge to {verb} a {quality} {thing}?",
    "Make a list of steps to {verb} the {thing}.",
    "Is it a good idea to {verb} a {thing} that is {quality}?",
    "Compare the {thing} with the {thing2}.",
    "The {thing} broke. Is a {thing2} a {quality} replacement?",
    "Summarise the {quality} {thing} in three lines.",
    "Where do people {verb} their {thing}?",
    "Why is my {thing} so {quality} since the {thing2}?",
];
const ANSWERS: &[&str] = &[
    "You can {verb} the {thing} first and then see to the {thing2}.",
    "A {quality} {thing} is usually enough.",
    "Start with the {thing}; it is the most {quality} part.",
    "I would not {verb} it before the {thing} is ready.",
    "Here is a version that is less {quality}.",
    "It depends on the {thing}, and on how {quality} it may be.",
    "Most people {verb} the {thing} twice.",
    "There are three steps: {verb}, wait, and look at the {thing}.",
    "The {thing2} costs about as much as the {thing}.",
    "I have put the {thing} on the list for next week.",
    "A {thing2} would be the {quality} choice here.",
    "Keep the {thing} away from the {thing2}.",
];
const VERBS: &str = "rewrite, repair, clean, order, renew, translate, cancel, assemble, measure, insulate, varnish, \
    reformat, debug, catalogue, photograph, ship, print, insure, calibrate, prune, fertilise, \
    defrost, upgrade, sketch, proofread, schedule, wrap, solder, sharpen, dismantle";
const THINGS: &str = "newsletter, tax form, bookshelf, dishwasher, spreadsheet, invoice, radiator, drainpipe, \
    presentation, backpack, printer, router, hedge, balcony, contract, cover letter, lamp, \
    greenhouse, compost heap, bicycle chain, kettle, curtain rail, passport, garage door, database, \
    landing page, budget, questionnaire, blender, mattress, speech, poster, chessboard, tent, \
    thermostat, toolbox, wardrobe, raincoat, timetable, sourdough starter, quilt, aquarium pump, \
    roof tile, doorbell, subscription, warranty, photo album, ladder, screwdriver, wheelbarrow, \
    parking permit, library card, smoke detector, birdhouse, crossword, keyboard, carpet, teapot, \
    suitcase, headboard, scarf, vase, stapler, microscope, telescope, power strip, flowerpot";
const QUALITIES: &str = "formal, expensive, rusty, wobbly, blurry, elegant, noisy, slippery, old-fashioned, compact, \
    brittle, generous, tedious, waterproof, clumsy, reliable, dusty, lightweight, crooked, \
    complicated, sturdy, faded, lukewarm, modest, bulky, cheerful, patchy, sensible, steep";

/// Fills the placeholders of a sentence, except for `{who}`.
fn fill_template(template: &str, rng: &mut SeededRng) -> String {
    let filled = template
        .replace("{verb}", rng.pick_from_list(VERBS))
        .replace("{thing2}", rng.pick_from_list(THINGS))
        .replace("{thing}", rng.pick_from_list(THINGS))
        .replace("{quality}", rng.pick_from_list(QUALITIES));
    polish_sentence(&filled)
}

/// Capitalizes the first letter, and replaces `a` by `an` before a vowel.
pub(crate) fn polish_sentence(text: &str) -> String {
    let mut polished = capitalize(text);
    for vowel in ['a', 'e', 'i', 'o', 'A', 'E', 'I', 'O'] {
        polished = polished.replace(&format!(" a {vowel}"), &format!(" an {vowel}"));
        polished = polished
            .strip_prefix(&format!("A {vowel}"))
            .map_or(polished.clone(), |rest| format!("An {vowel}{rest}"));
    }
    polished
}

/// Returns `statement` between an opener and a tail.
pub(crate) fn surround(opener: &str, statement: &str, rng: &mut SeededRng) -> String {
    let tail = rng.pick(TAILS);
    let text = format!("{opener}{statement} {}", fill_template(tail, rng));
    text.trim_end().to_owned()
}

/// Returns the agent's answer to a statement.
pub(crate) fn acknowledgement(rng: &mut SeededRng) -> String {
    let ack = rng.pick(ACKS);
    fill_template(ack, rng)
}

/// Returns the agent's answer to a question that it cannot answer.
pub(crate) fn unknown_answer(rng: &mut SeededRng) -> String {
    rng.pick(UNKNOWN).to_owned()
}

/// Returns a sentence that mentions `who` without stating a fact.
pub(crate) fn mention(who: &str, rng: &mut SeededRng) -> String {
    let mention = rng.pick(MENTIONS);
    fill_template(mention, rng).replace("{who}", who)
}

/// Returns a sentence that introduces `who` as the subject of the next one.
pub(crate) fn introduction(who: &str, rng: &mut SeededRng) -> String {
    let introduction = rng.pick(INTRODUCTIONS);
    fill_template(introduction, rng).replace("{who}", who)
}

/// Returns `statement` about a person with a relationship to `who`, which a search for `who` may mistake for an
/// answer.
pub(crate) fn related_person_statement(who: &str, statement: &str, rng: &mut SeededRng) -> String {
    let relationship = rng.pick(RELATIONSHIPS);
    polish_sentence(&format!("{relationship} of {who} was there too. {statement}"))
}

/// Returns an errand that mentions nobody, and the answer.
pub(crate) fn errand(rng: &mut SeededRng) -> (String, String) {
    let errand = rng.pick(ERRANDS);
    let asked = fill_template(errand, rng);
    let mut sentences = Vec::new();
    for _ in 0..rng.between(1, 4) {
        let answer = rng.pick(ANSWERS);
        sentences.push(fill_template(answer, rng));
    }
    (asked, sentences.join(" "))
}

fn capitalize(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_begin_and_go_on_as_they_should() {
        assert_eq!(
            polish_sentence("a elegant oboe or a ukulele, a Audi"),
            "An elegant oboe or a ukulele, an Audi"
        );
        let mut rng = SeededRng::new(5);
        for _ in 0..500 {
            let (asked, answer) = errand(&mut rng);
            let texts = [asked, answer, mention("Mara Lind", &mut rng), surround("So. ", "It is.", &mut rng)];
            for text in texts {
                assert!(text.starts_with(char::is_uppercase) && !text.contains(['{', '}']), "{text}");
            }
        }
    }
}
