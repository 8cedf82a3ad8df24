//! Browser tokens in requests to either service.

use api::ErrorCode;
use api::browser::{BrowserToken, TokenRefusal};
use axum::http::{HeaderMap, header};

use super::ApiError;

/// Returns the browser token in `Authorization`; `None` if there is none. A token beside another such header is
/// refused, because each part that reads the request might read another one.
pub fn browser_token(headers: &HeaderMap) -> Result<Option<BrowserToken>, TokenRefusal> {
    let values = headers.get_all(header::AUTHORIZATION).iter();
    let mut tokens = values.map(|value| {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| BrowserToken::from_bearer(token.trim()))?
    });
    match (tokens.next(), tokens.next()) {
        (first, None) => Ok(first.flatten()),
        (first, second) => {
            let has_token = [first, second].into_iter().flatten().chain(tokens).any(|token| token.is_some());
            if has_token { Err(TokenRefusal::Invalid) } else { Ok(None) }
        }
    }
}

impl From<TokenRefusal> for ApiError {
    fn from(refusal: TokenRefusal) -> Self {
        Self::new(refusal_code(refusal), refusal.to_string())
    }
}

/// Returns the code of a refusal.
pub const fn refusal_code(refusal: TokenRefusal) -> ErrorCode {
    match refusal {
        TokenRefusal::Invalid => ErrorCode::InvalidToken,
        TokenRefusal::Expired => ErrorCode::TokenExpired,
        TokenRefusal::Revoked => ErrorCode::TokenRevoked,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_a_single_header_can_have_a_token() {
        let read = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, HeaderValue::from_static(value));
            }
            browser_token(&headers).map(|token| token.map(|token| token.expose().to_owned()))
        };
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&["Bearer rbt1.a.b"]), Ok(Some("rbt1.a.b".to_owned())));
        assert_eq!(read(&["bearer  rbt1.a.b "]), Ok(Some("rbt1.a.b".to_owned())));
        for other in ["Bearer sk-svc-a", "Basic rbt1.a.b", "rbt1.a.b", "Bearer", "Bearer\trbt1.a.b"] {
            assert_eq!(read(&[other]), Ok(None), "{other}");
        }
        assert_eq!(read(&["Bearer x", "Bearer y"]), Ok(None));
        for two in [["Bearer rbt1.a.b", "Bearer rbt1.a.b"], ["Bearer x", "Bearer rbt1.a.b"]] {
            assert_eq!(read(&two), Err(TokenRefusal::Invalid), "{two:?}");
        }
    }
}
