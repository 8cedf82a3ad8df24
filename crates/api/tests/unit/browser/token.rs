//! Tokens are accepted as they were signed, and in no other form.

use serde_json::{Value, json};

use super::*;

fn claims(engine_id: EngineId) -> Claims {
    Claims {
        token_id: TokenId::new(),
        engine_id,
        issued_at_ms: 1_000,
        expires_at_ms: 61_000,
        scopes: serde_json::from_value(json!(["read", "chat", "read"])).unwrap(),
        task_id: Some(TaskId::new("täsk".to_owned()).unwrap()),
    }
}

const NOW: Timestamp = Timestamp::from_unix_ms(2_000);

fn secret(engine_id: EngineId) -> TokenSecret {
    TokenSecret::derive("a secrets key", engine_id)
}

/// The token with its claims changed and the signature kept.
fn with_claims(token: &BrowserToken, change: impl FnOnce(&mut Value)) -> BrowserToken {
    let parts: Vec<_> = token.expose().split('.').collect();
    let mut claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(parts[1]).unwrap()).unwrap();
    change(&mut claims);
    let claims = URL_SAFE_NO_PAD.encode(claims.to_string());
    BrowserToken(Zeroizing::new(format!("{}.{claims}.{}", parts[0], parts[2])))
}

#[test]
fn a_token_is_of_one_engine_one_key_and_one_time() {
    let (engine, other) = (EngineId::new(), EngineId::new());
    let (hash, next) = (KeyHash::of("sk-svc-a"), KeyHash::of("sk-svc-b"));
    let key = secret(engine).signing_key(hash);
    let token = key.sign(&claims(engine));
    let verified = key.verify(&token, engine, NOW).unwrap();
    assert!(verified.scopes.contain(Scope::Chat) && !verified.scopes.contain(Scope::Answer));
    assert_eq!(verified.task_id.unwrap().as_str(), "täsk");
    assert_eq!(token.claimed_engine(), Some(engine));
    let invalid = Some(TokenRefusal::Invalid);
    // The engine's key was rotated; another engine; another engine that has been given the same secret.
    assert_eq!(secret(engine).signing_key(next).verify(&token, engine, NOW).err(), invalid);
    assert_eq!(secret(other).signing_key(hash).verify(&token, other, NOW).err(), invalid);
    assert_eq!(key.verify(&token, other, NOW).err(), invalid);
    for (now, refusal) in [(60_999, None), (61_000, Some(TokenRefusal::Expired))] {
        assert_eq!(key.verify(&token, engine, Timestamp::from_unix_ms(now)).err(), refusal);
    }
}

#[test]
fn whoever_has_only_the_hash_of_the_key_can_sign_nothing() {
    let engine = EngineId::new();
    let hash = KeyHash::of("sk-svc-a");
    let key = secret(engine).signing_key(hash);
    let guessed = TokenSecret(Zeroizing::new(hash.0)).signing_key(hash);
    assert!(key.verify(&guessed.sign(&claims(engine)), engine, NOW).is_err());
    assert!(key.verify(&SigningKey(Zeroizing::new(hash.0)).sign(&claims(engine)), engine, NOW).is_err());
}

#[test]
fn no_other_form_is_accepted() {
    let engine = EngineId::new();
    let key = secret(engine).signing_key(KeyHash::of("sk-svc-a"));
    let token = key.sign(&claims(engine));
    let text = token.expose().to_owned();
    let (signed, signature) = text.rsplit_once('.').unwrap();
    let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
    let mut forms = vec![
        String::new(),
        "rbt1.".to_owned(),
        signed.to_owned(),
        format!("{signed}."),
        format!("{signed}.{}", &signature[1..]),
        format!("{signed}.{signature}A"),
        format!("{signed}.{signature}="),
        format!("{text}.{signature}"),
        format!("{text} "),
        text.replacen("rbt1", "rbt2", 1),
        text.replacen("rbt1", "RBT1", 1),
        text.replacen("rbt1.", "", 1),
        // As other formats say that there is no signature.
        text.replacen("rbt1", &none, 1),
        format!("{none}.{}.", signed.trim_start_matches("rbt1.")),
        "rbt1.".repeat(10_000),
    ];
    // Each character of the token changed.
    for at in 0..text.len() {
        let mut bytes = text.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        forms.push(String::from_utf8(bytes).unwrap());
    }
    for form in forms {
        let refused = key.verify(&BrowserToken(Zeroizing::new(form.clone())), engine, NOW);
        assert_eq!(refused.err(), Some(TokenRefusal::Invalid), "{form}");
    }
    let changes: [fn(&mut Value); 5] = [
        |claims| claims["exp"] = json!(i64::MAX),
        |claims| claims["scp"] = json!(["chat", "read", "answer"]),
        |claims| claims["tsk"] = json!("another"),
        |claims| drop(claims.as_object_mut().unwrap().remove("tsk")),
        |claims| claims["jti"] = json!(TokenId::new()),
    ];
    for change in changes {
        assert!(key.verify(&with_claims(&token, change), engine, NOW).is_err());
    }
}

#[test]
fn a_claim_that_is_not_known_is_refused_although_it_is_signed() {
    let engine = EngineId::new();
    let key = secret(engine).signing_key(KeyHash::of("sk-svc-a"));
    let later = with_claims(&key.sign(&claims(engine)), |claims| claims["ip"] = json!("192.0.2.1"));
    let (signed, _) = later.expose().rsplit_once('.').unwrap();
    let signed_again = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(key.signature(signed)));
    let refused = key.verify(&BrowserToken(Zeroizing::new(signed_again)), engine, NOW);
    assert_eq!(refused.err(), Some(TokenRefusal::Invalid));
}

#[test]
fn scopes_are_a_set_that_is_not_empty() {
    for wrong in [json!([]), json!(["write"]), json!("chat"), json!([null])] {
        assert!(serde_json::from_value::<Scopes>(wrong).is_err());
    }
    let scopes: Scopes = serde_json::from_value(json!(["answer", "read", "answer", "chat"])).unwrap();
    assert_eq!(serde_json::to_value(scopes).unwrap(), json!(["chat", "read", "answer"]));
}

#[test]
fn nothing_shows_a_secret() {
    let engine = EngineId::new();
    let secret = secret(engine);
    let key = secret.signing_key(KeyHash::of("sk-svc-a"));
    let token = key.sign(&claims(engine));
    let shown = format!("{secret:?} {key:?} {token:?}");
    assert_eq!(shown, "token secret… token signing key… rbt…");
    assert_eq!(TokenSecret::parse(&secret.expose()).unwrap().0, secret.0);
}
