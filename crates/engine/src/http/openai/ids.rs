//! Ids in the vendor's form. They derive from the turn, so that a response is found again by its id alone.

use api::TurnId;

/// The id of the turn in another form: `prefix` in place of `turn_`.
pub(super) fn with_prefix(prefix: &str, turn_id: TurnId) -> String {
    let text = turn_id.to_string();
    format!("{prefix}{}", text.strip_prefix("turn_").unwrap_or(&text))
}

/// The turn that an id with `prefix` stands for, in the form in which turns are looked up.
pub(super) fn turn_of(prefix: &str, id: &str) -> Option<String> {
    let id = id.strip_prefix(prefix)?;
    let turn_id = format!("turn_{id}").parse::<TurnId>().ok()?;
    Some(turn_id.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_leads_back_to_its_turn() {
        let turn_id = TurnId::new();
        let id = with_prefix("resp_", turn_id);
        assert!(id.starts_with("resp_") && !id.contains("turn"), "{id}");
        assert_eq!(turn_of("resp_", &id), Some(turn_id.to_string()));
        for other in ["", "resp_", "resp_x", "chatcmpl-", &turn_id.to_string(), &id[5..]] {
            assert_eq!(turn_of("resp_", other), None, "{other}");
        }
    }
}
