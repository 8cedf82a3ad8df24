//! The completion of a document, on a small one.

use serde_json::{Value, json};
use utoipa::{OpenApi as _, ToSchema};

use super::responses::error_codes;
use super::*;

#[derive(ToSchema)]
struct Circle {
    #[expect(dead_code, reason = "only its schema is used")]
    radius: u32,
}

#[derive(ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
enum Shape {
    RoundShape(Circle),
    Square { side: u32 },
}

#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum Anything {
    Circle(Circle),
    #[schema(title = "Empty")]
    Empty {},
}

#[utoipa::path(
    method(get, head), path = "/shapes/{*path}", operation_id = "get_shape", security(("key" = [])),
    params(("path" = String, Path), ("If-Match" = Option<String>, Header)),
    responses(
        (status = 200, body = Shape, description = "The shape"),
        (status = 503, body = api::ErrorBody, description = "OVERLOADED, SHUTTING_DOWN"),
    ),
)]
#[expect(dead_code, reason = "only its description is used")]
fn read() {}

#[utoipa::path(
    method(post, put), path = "/shapes", operation_id = "store", request_body = Anything, security(("key" = [])),
    responses((status = 204, description = "It is stored")),
)]
#[expect(dead_code, reason = "only its description is used")]
fn write() {}

#[derive(utoipa::OpenApi)]
#[openapi(paths(read, write))]
struct Document;

fn completed() -> Value {
    let mut document = Document::openapi();
    complete(&mut document);
    serde_json::to_value(document).unwrap()
}

#[test]
fn wildcards_and_shared_ids_become_valid() {
    let paths = completed()["paths"].clone();
    assert_eq!(paths["/shapes/{path}"]["get"]["operationId"], "get_shape");
    assert_eq!(paths["/shapes/{path}"]["head"]["operationId"], "head_shape");
    assert_eq!(paths["/shapes"]["post"]["operationId"], "store_post");
    assert_eq!(paths["/shapes"]["put"]["operationId"], "store_put");
    assert_eq!(paths["/shapes/{path}"]["get"]["parameters"][1]["schema"], json!({"type": "string"}));
    assert_eq!(paths["/shapes/{path}"]["head"]["responses"]["200"].get("content"), None);
}

#[test]
fn refusals_of_input_are_added_and_codes_are_listed() {
    let paths = completed()["paths"].clone();
    let get = &paths["/shapes/{path}"]["get"]["responses"];
    assert_eq!(get["400"]["x-error-codes"], json!(["INVALID_REQUEST"]));
    assert_eq!(get.get("408"), None);
    assert_eq!(get["503"]["x-error-codes"], json!(["OVERLOADED", "SHUTTING_DOWN"]));
    let example = &get["503"]["content"]["application/json"]["examples"]["OVERLOADED"]["value"];
    assert_eq!(example["error"]["code"], "OVERLOADED");
    assert_eq!(get["503"]["headers"]["Retry-After"]["$ref"], "#/components/headers/Retry-After");
    assert_eq!(get["200"]["headers"]["X-Request-Id"]["$ref"], "#/components/headers/X-Request-Id");
    assert_eq!(get["200"]["headers"].get("Retry-After"), None);
    assert_eq!(paths["/shapes"]["post"]["responses"]["408"]["x-error-codes"], json!(["REQUEST_TIMEOUT"]));
    assert_eq!(error_codes("`TASK_BUSY` (A task), NO_SUCH_CODE").len(), 1);
}

#[test]
fn the_variants_of_a_tagged_enum_have_names_and_a_discriminator() {
    let schemas = completed()["components"]["schemas"].clone();
    let mapping = json!({
        "round_shape": "#/components/schemas/ShapeRoundShape", "square": "#/components/schemas/ShapeSquare",
    });
    let discriminator = json!({"propertyName": "kind", "mapping": mapping});
    assert_eq!(schemas["Shape"]["discriminator"], discriminator);
    let references = json!([{"$ref": mapping["round_shape"]}, {"$ref": mapping["square"]}]);
    assert_eq!(schemas["Shape"]["oneOf"], references);
    assert_eq!(schemas["ShapeSquare"]["required"], json!(["side", "kind"]));
    assert!(schemas["ShapeRoundShape"]["allOf"].is_array());
    // Values may match several variants of an untagged one.
    assert_eq!(schemas["Anything"]["anyOf"][0]["$ref"], "#/components/schemas/Circle");
    assert_eq!(schemas["Anything"]["anyOf"][1]["$ref"], "#/components/schemas/AnythingEmpty");
}
