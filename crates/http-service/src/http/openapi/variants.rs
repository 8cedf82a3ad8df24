//! Names for the variants of unions.
//!
//! `utoipa` describes a tagged enum as a union of unnamed schemas, which generators number. Here every variant becomes
//! a schema of its own, called after the union and the tag's value, and a discriminator names the tag.

use std::collections::BTreeSet;
use std::mem;

use api::text::pascal_case;
use utoipa::openapi::schema::{AnyOf, Components, Discriminator, Object, OneOf};
use utoipa::openapi::{OpenApi, Ref, RefOr, Schema};

pub(super) fn name_variants(document: &mut OpenApi) {
    let Some(components) = &mut document.components else { return };
    let names: Vec<String> = components.schemas.keys().cloned().collect();
    for name in names {
        let Some(RefOr::T(schema)) = components.schemas.get_mut(&name) else { continue };
        let Schema::OneOf(union) = schema else { continue };
        if union.discriminator.is_some() {
            continue;
        }
        if let Some(tag) = common_tag(union) {
            let union = mem::take(union);
            let union = with_named_variants(components, &name, union, &tag);
            components.schemas.insert(name, Schema::OneOf(union).into());
        } else {
            let union = mem::take(union);
            let union = any_of(components, &name, union);
            components.schemas.insert(name, Schema::AnyOf(union).into());
        }
    }
}

/// Returns the property that has a single value of its own in every variant.
fn common_tag(union: &OneOf) -> Option<String> {
    let mut variants = union.items.iter().map(|variant| match variant {
        RefOr::T(schema) => tags(schema).into_iter().map(|(name, _)| name).collect::<BTreeSet<_>>(),
        RefOr::Ref(_) => BTreeSet::new(),
    });
    let first = variants.next()?;
    variants.fold(first, |common, tags| &common & &tags).pop_first()
}

/// Returns the properties of a variant that have a single value, with that value.
fn tags(schema: &Schema) -> Vec<(String, String)> {
    let objects: Vec<&Object> = match schema {
        Schema::Object(object) => vec![object],
        Schema::AllOf(parts) => parts
            .items
            .iter()
            .filter_map(|part| if let RefOr::T(Schema::Object(object)) = part { Some(object) } else { None })
            .collect(),
        _ => Vec::new(),
    };
    objects.into_iter().flat_map(|object| &object.properties).filter_map(single_value).collect()
}

fn single_value((name, schema): (&String, &RefOr<Schema>)) -> Option<(String, String)> {
    let RefOr::T(Schema::Object(Object { enum_values: Some(values), .. })) = schema else { return None };
    let [value] = values.as_slice() else { return None };
    Some((name.clone(), value.as_str()?.to_owned()))
}

fn with_named_variants(components: &mut Components, name: &str, mut union: OneOf, tag: &str) -> OneOf {
    let mut discriminator = Discriminator::new(tag);
    for item in &mut union.items {
        let RefOr::T(schema) = item else { continue };
        let Some((_, value)) = tags(schema).into_iter().find(|(name, _)| name == tag) else { continue };
        let variant_name = format!("{name}{}", pascal_case(&value));
        let reference = Ref::from_schema_name(&variant_name);
        discriminator.mapping.insert(value, reference.ref_location.clone());
        let schema = mem::replace(item, reference.into());
        components.schemas.insert(variant_name, schema);
    }
    union.discriminator = Some(discriminator);
    union
}

/// Returns the union of an untagged enum, whose values may match several variants. A variant with a title gets a
/// name.
fn any_of(components: &mut Components, name: &str, union: OneOf) -> AnyOf {
    let mut any = AnyOf::new();
    any.description = union.description;
    for item in union.items {
        let title = match &item {
            RefOr::T(Schema::Object(object)) => object.title.clone(),
            _ => None,
        };
        any.items.push(match title {
            Some(title) => {
                let variant_name = format!("{name}{title}");
                let reference = Ref::from_schema_name(&variant_name);
                components.schemas.insert(variant_name, item);
                reference.into()
            }
            None => item,
        });
    }
    any
}
