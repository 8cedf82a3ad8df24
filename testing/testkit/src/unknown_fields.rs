//! Bodies with a field that nobody knows, for every JSON body of an OpenAPI document and every object in it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// The field that no object has.
pub const UNKNOWN: &str = "no_such_field";

/// A body with one unknown field, of which nothing else is wrong.
#[derive(Debug)]
pub struct BodyWithUnknownField {
    /// The operation's id.
    pub operation: String,
    /// Its method, in capitals.
    pub method: String,
    /// Its path, with `x` for each parameter.
    pub path: String,
    /// The object that has the field: the operation's id and the names that lead there, with `*` for an item.
    pub place: String,
    /// The field as refusals and warnings name it, such as `media.0.no_such_field`.
    pub field: String,
    /// The body.
    pub body: Value,
}

/// Returns such bodies for the operations of `document` other than those in `left_out`: an unknown field in each object
/// of the example, and of the further `samples` (by operation), but for what is below the places in `free`, whose
/// content is the caller's own.
///
/// # Panics
/// Panics if no sample has one of the objects that the schemas describe.
pub fn bodies(
    document: &Value,
    samples: &[(&str, Value)],
    left_out: &[&str],
    free: &[&str],
) -> Vec<BodyWithUnknownField> {
    let mut bodies = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let content = &operation["requestBody"]["content"]["application/json"];
            let id = operation["operationId"].as_str().unwrap();
            if content.is_null() || left_out.contains(&id) {
                continue;
            }
            let own = samples.iter().filter(|(operation, _)| *operation == id).map(|(_, sample)| sample);
            let walk = Walk { document, free };
            let mut sites = Vec::new();
            let mut expected = BTreeSet::new();
            walk.places(&content["schema"], id, &mut Vec::new(), &mut expected);
            for sample in std::iter::once(&content["example"]).chain(own) {
                let mut found = Vec::new();
                walk.objects(&[&content["schema"]], sample, id, "", &mut found);
                sites.extend(found.into_iter().map(|(place, pointer)| (place, pointer, sample)));
            }
            let covered: BTreeSet<String> = sites.iter().map(|(place, ..)| place.clone()).collect();
            let missing: Vec<&String> = expected.difference(&covered).collect();
            assert!(missing.is_empty(), "no sample has an object at {missing:?}");
            bodies.extend(sites.into_iter().map(|(place, pointer, sample)| {
                let mut body = sample.clone();
                body.pointer_mut(&pointer).unwrap()[UNKNOWN] = json!(1);
                let path = path.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
                BodyWithUnknownField {
                    operation: id.to_owned(),
                    method: method.to_uppercase(),
                    path: path.collect::<Vec<_>>().join("/"),
                    place,
                    field: format!("{pointer}/{UNKNOWN}").trim_start_matches('/').replace('/', "."),
                    body,
                }
            }));
        }
    }
    bodies
}

struct Walk<'a> {
    document: &'a Value,
    free: &'a [&'a str],
}

impl<'a> Walk<'a> {
    /// The schemas that a value may have at one place: references are followed, unions and parts are listed.
    fn alternatives(&self, schema: &'a Value) -> Vec<&'a Value> {
        if let Some(reference) = schema["$ref"].as_str() {
            return self.alternatives(self.document.pointer(reference.trim_start_matches('#')).unwrap());
        }
        let mut all = vec![schema];
        for union in ["oneOf", "anyOf", "allOf"] {
            let variants = schema[union].as_array().into_iter().flatten();
            all.extend(variants.flat_map(|variant| self.alternatives(variant)));
        }
        all
    }

    /// Collects the places of the objects whose fields the schema lists.
    fn places(
        &self,
        schema: &'a Value,
        place: &str,
        above: &mut Vec<&'a Value>,
        found: &mut BTreeSet<String>,
    ) {
        if self.free.contains(&place) {
            return;
        }
        for schema in self.alternatives(schema) {
            // A schema that contains itself has been seen.
            if above.iter().any(|other| std::ptr::eq(*other, schema)) {
                continue;
            }
            above.push(schema);
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                found.insert(place.to_owned());
                self.places(property, &format!("{place}.{name}"), above, found);
            }
            if !schema["items"].is_null() {
                self.places(&schema["items"], &format!("{place}.*"), above, found);
            }
            above.pop();
        }
    }

    /// Collects the objects of a `value` whose fields its schemas list, as places and pointers.
    fn objects(
        &self,
        schemas: &[&'a Value],
        value: &Value,
        place: &str,
        pointer: &str,
        found: &mut Vec<(String, String)>,
    ) {
        if self.free.contains(&place) {
            return;
        }
        let schemas: Vec<&Value> =
            schemas.iter().copied().flat_map(|schema| self.alternatives(schema)).collect();
        match value {
            Value::Object(fields) if schemas.iter().any(|schema| schema["properties"].is_object()) => {
                found.push((place.to_owned(), pointer.to_owned()));
                for (name, value) in fields {
                    let properties: Vec<&Value> =
                        schemas.iter().filter_map(|schema| schema["properties"].get(name)).collect();
                    self.objects(
                        &properties,
                        value,
                        &format!("{place}.{name}"),
                        &format!("{pointer}/{name}"),
                        found,
                    );
                }
            }
            Value::Array(values) => {
                let items: Vec<&Value> = schemas.iter().filter_map(|schema| schema.get("items")).collect();
                for (index, value) in values.iter().enumerate() {
                    self.objects(&items, value, &format!("{place}.*"), &format!("{pointer}/{index}"), found);
                }
            }
            _ => (),
        }
    }
}
