//! An orchestrator that is asked, and what its refusals mean: what is wrong, where, and what to do.

use api::{ErrorCode, ProductId};

use crate::client::{Call, ClientError, Document, ForeignResponse, Orchestrator};
use crate::engine_access::AccessOptions;
use crate::error::Failure;
use crate::terminal::single_line;

/// The longest message of a service that is shown.
const MAX_MESSAGE_CHARS: usize = 2_000;

/// Whose engines a command is about.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ProductOptions {
    #[command(flatten)]
    access: AccessOptions,
    /// Act for this product as the operator, with the admin key.
    #[arg(long, value_name = "ID")]
    product: Option<ProductId>,
}

impl ProductOptions {
    pub(super) fn open(self) -> Result<Session, Failure> {
        let access = self.access.resolve()?;
        let orchestrator = match self.product {
            Some(product) => access.operator(Some(product))?,
            None => access.product()?,
        };
        Ok(Session { orchestrator })
    }
}

/// Which engines a command that only reads is about.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ScopeOptions {
    #[command(flatten)]
    product: ProductOptions,
    /// Read across all products, as the operator, with the admin key.
    #[arg(long, conflicts_with = "product")]
    all_products: bool,
}

impl ScopeOptions {
    /// The orchestrator, and the part of its paths that says whose engines are meant.
    pub(super) fn open(self) -> Result<(Session, Scope), Failure> {
        if self.all_products {
            let orchestrator = self.product.access.resolve()?.operator(None)?;
            return Ok((Session { orchestrator }, Scope::AllProducts));
        }
        Ok((self.product.open()?, Scope::Product))
    }
}

/// Whose engines are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Product,
    AllProducts,
}

impl Scope {
    pub(super) fn path(self, name: &'static str) -> Vec<&'static str> {
        match self {
            Self::Product => vec![name],
            Self::AllProducts => vec!["fleet", name],
        }
    }
}

/// An orchestrator, asked as a product or as the operator.
pub(super) struct Session {
    pub(super) orchestrator: Orchestrator,
}

impl Session {
    /// Opens the orchestrator as its operator.
    pub(super) fn operator(access: AccessOptions) -> Result<Self, Failure> {
        Ok(Self { orchestrator: access.resolve()?.operator(None)? })
    }

    /// Opens the orchestrator as the product whose key there is.
    pub(super) fn product(access: AccessOptions) -> Result<Self, Failure> {
        Ok(Self { orchestrator: access.resolve()?.product()? })
    }

    pub(super) async fn call(&self, call: &Call<'_>) -> Result<Document, Failure> {
        let named = |error| match call.path {
            ["engines", user, ..] => named(error, user),
            _ => error,
        };
        self.orchestrator.call(call).await.map_err(|error| self.failure(named(error)))
    }

    /// What it means that a request failed.
    pub(super) fn failure(&self, error: ClientError) -> Failure {
        match error {
            ClientError::Refused { code, message } => self.refusal(code, &message),
            ClientError::Failed(error) => self.breakdown(error),
        }
    }

    fn refusal(&self, code: ErrorCode, message: &str) -> Failure {
        let said = format!("{} ({code})", single_line(message.trim_end_matches('.'), MAX_MESSAGE_CHARS));
        let address = self.orchestrator.address();
        match code {
            ErrorCode::InvalidPlatformKey | ErrorCode::InvalidAdminKey => Failure::Refused(format!(
                "the orchestrator at {address} refuses {}: {said}; use the key of this deployment",
                self.orchestrator.key_origin()
            )),
            ErrorCode::StartingUp => Failure::Unavailable(format!(
                "the orchestrator at {address} is not ready: {said}; try again in a few seconds, or, if it is a \
                 standby, use the address of the active one"
            )),
            ErrorCode::EngineNotRunning => Failure::Refused(format!(
                "{said}; `roundhouse engine start USER` starts it, and `roundhouse engine explain USER` says why it \
                 does not run"
            )),
            _ => match code.status() {
                400 | 405 | 413 => Failure::Usage(said),
                404 => Failure::NotFound(said),
                401 | 403 | 409 | 412 | 429 => Failure::Refused(said),
                503 => Failure::Unavailable(format!("{said}; try again in a few seconds")),
                _ => Failure::Failed(anyhow::anyhow!(said)),
            },
        }
    }

    fn breakdown(&self, error: anyhow::Error) -> Failure {
        let address = self.orchestrator.address();
        if let Some(ForeignResponse { status }) = error.downcast_ref() {
            let text = format!(
                "what answers at {address} is no Roundhouse orchestrator ({status}); check the address"
            );
            return if matches!(status.as_u16(), 502..=504) {
                Failure::Unavailable(text)
            } else {
                anyhow::anyhow!(text).into()
            };
        }
        if is_out_of_reach(&error) {
            let cause = error.chain().last().map(ToString::to_string).unwrap_or_default();
            return Failure::Unavailable(format!(
                "the orchestrator at {address} does not answer ({}): check the address, and that it runs",
                single_line(&cause, MAX_MESSAGE_CHARS)
            ));
        }
        Failure::Failed(error.context(format!("the request to {address} failed")))
    }
}

/// Names the user who has no engine.
pub(super) fn named(error: ClientError, user: &str) -> ClientError {
    match error {
        ClientError::Refused { code: code @ ErrorCode::EngineNotFound, message } => {
            ClientError::Refused { code, message: format!("`{user}`: {message}") }
        }
        error => error,
    }
}

/// Whether a request may not have reached the service, or its response not come back.
fn is_out_of_reach(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let of_http = cause.downcast_ref::<reqwest::Error>();
        of_http.is_some_and(|error| error.is_connect() || error.is_timeout() || error.is_request())
            || cause.is::<tokio::time::error::Elapsed>()
    })
}
