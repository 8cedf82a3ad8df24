//! What a client can choose for a session: the model and how much it thinks, for the prompts that follow.

use api::turn_options::Effort;
use serde_json::{Value, json};

use super::rpc::RpcError;

/// The value of an option that leaves it to the engine's configuration.
const DEFAULT: &str = "default";
const MODEL: &str = "model";
const EFFORT: &str = "effort";
const EFFORTS: [Effort; 5] = [Effort::Low, Effort::Medium, Effort::High, Effort::Xhigh, Effort::Max];

/// What was chosen; the engine's configuration decides what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Choices {
    pub(super) model: Option<String>,
    pub(super) effort: Option<Effort>,
}

impl Choices {
    /// The options with their values, `models` being the names in the engine's configuration.
    pub(super) fn options(&self, models: &[String]) -> Value {
        let named = models.iter().map(|name| (name.clone(), name.clone()));
        let efforts = EFFORTS.iter().map(|effort| {
            let name = effort_name(*effort);
            (name.clone(), name)
        });
        let model = self.model.clone();
        let effort = self.effort.map(effort_name);
        json!([
            select(MODEL, "model", "Model", model, named),
            select(EFFORT, "thought_level", "Effort", effort, efforts),
        ])
    }

    /// Chooses a value.
    pub(super) fn set(&mut self, id: &str, value: &Value, models: &[String]) -> Result<(), RpcError> {
        let unknown = || RpcError::invalid_params(format!("`value`: the option `{id}` has no such value"));
        let name = value.as_str().ok_or_else(unknown)?;
        match id {
            MODEL if name == DEFAULT => self.model = None,
            MODEL if models.iter().any(|model| model == name) => self.model = Some(name.to_owned()),
            EFFORT if name == DEFAULT => self.effort = None,
            EFFORT => {
                let effort = EFFORTS.into_iter().find(|effort| effort_name(*effort) == name);
                self.effort = Some(effort.ok_or_else(unknown)?);
            }
            MODEL => return Err(unknown()),
            _ => return Err(RpcError::invalid_params(format!("`configId`: there is no option `{id}`"))),
        }
        Ok(())
    }
}

fn effort_name(effort: Effort) -> String {
    let name = serde_json::to_value(effort).unwrap_or_default();
    name.as_str().unwrap_or(DEFAULT).to_owned()
}

fn select(
    id: &str,
    category: &str,
    name: &str,
    current: Option<String>,
    values: impl Iterator<Item = (String, String)>,
) -> Value {
    let default = (DEFAULT.to_owned(), "As configured".to_owned());
    let options: Vec<Value> = std::iter::once(default)
        .chain(values)
        .map(|(value, name)| json!({"value": value, "name": name}))
        .collect();
    let current = current.unwrap_or_else(|| DEFAULT.to_owned());
    json!({
        "type": "select", "id": id, "name": name, "category": category, "currentValue": current, "options": options,
    })
}

/// The names of the models in the engine's configuration.
pub(super) fn model_names(configuration: &Value) -> Vec<String> {
    let models = configuration.get("models").and_then(Value::as_object);
    models.into_iter().flatten().map(|(name, _)| name.clone()).filter(|name| name != DEFAULT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_offered_can_be_chosen() {
        let models = model_names(&json!({"models": {"big": {}, "default": {}, "small": {}}}));
        let mut choices = Choices::default();
        for (id, value) in
            [("model", json!("huge")), ("effort", json!("none")), ("mode", json!("x")), ("model", json!(1))]
        {
            assert!(choices.set(id, &value, &models).is_err(), "{id} {value}");
        }
        choices.set("model", &json!("small"), &models).unwrap();
        choices.set("effort", &json!("high"), &models).unwrap();
        assert_eq!(choices, Choices { model: Some("small".into()), effort: Some(Effort::High) });
        let options = choices.options(&models);
        assert_eq!(
            (&options[0]["currentValue"], &options[1]["currentValue"]),
            (&json!("small"), &json!("high"))
        );
        assert_eq!(options[0]["options"].as_array().unwrap().len(), 3);
        choices.set("model", &json!("default"), &models).unwrap();
        choices.set("effort", &json!("default"), &models).unwrap();
        assert_eq!(choices, Choices::default());
    }
}
