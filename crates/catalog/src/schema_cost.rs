//! An upper bound of the work that validating an input against a JSON Schema can take. Validation follows every
//! alternative: where alternatives refer to the same schema again and again, the work doubles with each step and
//! validation would never finish.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

/// The maximum number of subschemas that one value may be checked against.
const MAX_PATHS: u64 = 1 << 20;
/// The maximum number of subschemas visited to compute the cost.
const MAX_STEPS: u64 = 1 << 20;
/// The maximum length of a chain of references.
const MAX_REFERENCE_DEPTH: usize = 64;
/// The maximum cost of a validation, as a power of two of steps that take less than a microsecond each.
const MAX_COST_LOG2: u32 = 24;

/// The cost of a schema while its references are followed.
#[derive(Clone, Debug, Default)]
pub(super) struct Branching<'a> {
    /// The number of subschemas a value is checked against, following references until one leads back.
    paths: u64,
    /// The number of references that lead back for a value's members: for the member of this name or, under the
    /// empty name, for any member.
    back_references: BTreeMap<&'a str, u64>,
}

/// The part of the cost that is kept with a compiled schema.
#[derive(Clone, Copy, Debug)]
pub(super) struct SchemaCost {
    paths: u64,
    back_references: u64,
}

impl SchemaCost {
    /// Computes the cost of `schema`.
    ///
    /// # Errors
    /// That the cost is too high or cannot be determined, for a person.
    pub(super) fn of_schema(schema: &Value) -> Result<Self, String> {
        let mut walk =
            SchemaWalk { root: schema, visited: HashMap::new(), open_references: vec!["#"], steps: 0 };
        let branching = walk.visit(schema)?;
        Ok(Self { paths: branching.paths, back_references: branching.max_back_references() })
    }

    /// Whether `input` can be validated within the limit.
    pub(super) fn is_affordable(self, input: &Value) -> bool {
        if self.back_references < 2 {
            return true;
        }
        let (values, depth) = size_and_depth(input);
        let bits = |number: u64| u64::BITS - number.leading_zeros();
        let by_depth = u64::from(bits(self.back_references - 1)).saturating_mul(depth);
        by_depth.saturating_add(u64::from(bits(self.paths) + bits(values))) <= u64::from(MAX_COST_LOG2)
    }
}

/// Returns the number of values in `value`, itself included, and their depth.
fn size_and_depth(value: &Value) -> (u64, u64) {
    let sub_agent_note = |all: &mut dyn Iterator<Item = &Value>| {
        all.map(size_and_depth)
            .fold((1, 1), |(values, depth), (more, inner)| (values + more, depth.max(inner + 1)))
    };
    match value {
        Value::Array(items) => sub_agent_note(&mut items.iter()),
        Value::Object(members) => sub_agent_note(&mut members.values()),
        _ => (1, 1),
    }
}

impl<'a> Branching<'a> {
    fn single_path() -> Self {
        Self { paths: 1, back_references: BTreeMap::new() }
    }

    /// Returns the highest number of references that lead back for the same member.
    fn max_back_references(&self) -> u64 {
        let any = self.back_references.get("").copied().unwrap_or(0);
        let named = self.back_references.iter().filter(|(name, _)| !name.is_empty()).map(|(_, count)| *count);
        named.max().unwrap_or(0).saturating_add(any)
    }

    fn add(&mut self, other: &Self) -> Result<(), String> {
        self.paths = self.paths.saturating_add(other.paths);
        for (name, count) in &other.back_references {
            let sum = self.back_references.entry(name).or_default();
            *sum = sum.saturating_add(*count);
        }
        if self.paths > MAX_PATHS { Err("it branches too often".into()) } else { Ok(()) }
    }

    /// Returns the cost as it counts for the member `name` of a value.
    fn for_member(self, name: &'a str) -> Self {
        let back = self.max_back_references();
        Self {
            paths: self.paths,
            back_references: if back > 0 { BTreeMap::from([(name, back)]) } else { BTreeMap::new() },
        }
    }
}

struct SchemaWalk<'a> {
    root: &'a Value,
    visited: HashMap<&'a str, Branching<'a>>,
    /// The references that lead to the current position of the walk.
    open_references: Vec<&'a str>,
    steps: u64,
}

impl<'a> SchemaWalk<'a> {
    fn visit(&mut self, part: &'a Value) -> Result<Branching<'a>, String> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err("it branches too often".into());
        }
        let mut all = Branching::single_path();
        match part {
            Value::Array(parts) => {
                for part in parts {
                    all.add(&self.visit(part)?)?;
                }
            }
            Value::Object(members) => {
                for (keyword, part) in members {
                    all.add(&self.visit_keyword(keyword, part)?)?;
                }
            }
            _ => {}
        }
        Ok(all)
    }

    fn visit_keyword(&mut self, keyword: &str, part: &'a Value) -> Result<Branching<'a>, String> {
        match (keyword, part) {
            ("$ref", Value::String(reference)) => self.visit_reference(reference),
            ("$dynamicRef" | "$recursiveRef", Value::String(_)) => {
                Err(format!("`{keyword}` is not supported: use `$ref`"))
            }
            // These keywords check nothing where they stand.
            ("$defs" | "definitions" | "const" | "enum" | "default" | "examples", _) => {
                Ok(Branching::single_path())
            }
            ("properties", Value::Object(properties)) => {
                let mut all = Branching::single_path();
                for (name, part) in properties {
                    all.add(&self.visit(part)?.for_member(name))?;
                }
                Ok(all)
            }
            _ => self.visit(part),
        }
    }

    fn visit_reference(&mut self, reference: &'a str) -> Result<Branching<'a>, String> {
        if self.open_references.contains(&reference) {
            return Ok(Branching { paths: 1, back_references: BTreeMap::from([("", 1)]) });
        }
        if let Some(known) = self.visited.get(reference) {
            return Ok(known.clone());
        }
        if self.open_references.len() > MAX_REFERENCE_DEPTH {
            return Err("its chain of `$ref`s leads too far".into());
        }
        let target = reference.strip_prefix('#').and_then(|path| self.root.pointer(path));
        let target =
            target.ok_or("one of its `$ref`s has no target within it; write them like `#/$defs/name`")?;
        self.open_references.push(reference);
        let branching = self.visit(target);
        self.open_references.pop();
        let branching = branching?;
        self.visited.insert(reference, branching.clone());
        Ok(branching)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fits(schema: &Value, depth: usize) -> bool {
        let input = (0..depth).fold(json!(1), |inner, _| json!({"a": [inner]}));
        SchemaCost::of_schema(schema).is_ok_and(|work| work.is_affordable(&input))
    }

    #[test]
    fn what_is_usual_is_checked_however_deep() {
        let tree = json!({"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}});
        let list = json!({"type": "array", "items": {"$ref": "#"}});
        let filter = json!({"$ref": "#/$defs/f", "$defs": {"f": {"oneOf": [
            {"properties": {"and": {"items": {"$ref": "#/$defs/f"}}}},
            {"properties": {"or": {"items": {"$ref": "#/$defs/f"}}}},
            {"properties": {"not": {"$ref": "#/$defs/f"}}},
        ]}}});
        for schema in [tree, list, filter, json!({}), json!(true)] {
            assert!(fits(&schema, 50), "{schema}");
        }
    }

    #[test]
    fn what_doubles_is_checked_where_it_is_shallow() {
        let doubles = json!({"items": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}});
        assert!(fits(&doubles, 3) && !fits(&doubles, 30));
        let step = |number: u32| json!({"anyOf": vec![json!({"$ref": format!("#/$defs/{number}")}); 2]});
        let mut wide = step(0);
        for number in 0..40 {
            wide["$defs"][number.to_string()] = step(number + 1);
        }
        wide["$defs"]["40"] = json!({"type": "string"});
        assert_eq!(SchemaCost::of_schema(&wide).unwrap_err(), "it branches too often");
    }

    #[test]
    fn what_leads_too_far_or_nowhere_is_refused() {
        let mut chain = json!({"$ref": "#/$defs/0"});
        for number in 0..5_000 {
            chain["$defs"][number.to_string()] = json!({"$ref": format!("#/$defs/{}", number + 1)});
        }
        assert!(SchemaCost::of_schema(&chain).unwrap_err().contains("too far"));
        for reference in ["#/nowhere", "#anchor", "https://a.test/schema", "other.json", "#/$defs/%61"] {
            assert!(
                SchemaCost::of_schema(&json!({"$ref": reference, "$defs": {"a": {}}})).is_err(),
                "{reference}"
            );
        }
        assert!(SchemaCost::of_schema(&json!({"$dynamicRef": "#a"})).is_err());
    }
}
