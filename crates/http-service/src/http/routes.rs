//! The route table of a service.

use axum::handler::Handler;
use axum::routing::MethodRouter;
use utoipa_axum::PathItemExt as _;

/// Lists the handlers of a service once: the function `table` serves each at the path and with the methods of its
/// `utoipa::path`, and the type `Document` is generated from the same list, so that no route is undocumented.
///
/// A router that carries its document (`utoipa_axum`'s) would build all of it at each start, which is a quarter of
/// an engine's start in instructions, and a megabyte of code and heap.
#[macro_export]
macro_rules! routes {
    (
        $state:ty,
        openapi($($about:tt)*),
        $($module:ident::$handler:ident),+ $(,)?
    ) => { $crate::http::paste! {
        fn table() -> axum::Router<$state> {
            axum::Router::new()$(.route(
                &<$module::[<__path_ $handler>] as utoipa::Path>::path(),
                $crate::http::described::<$module::[<__path_ $handler>], _, _, _>(&$module::$handler),
            ))+
        }

        #[derive(utoipa::OpenApi)]
        #[openapi($($about)*, paths($($module::$handler),+))]
        struct Document;
    } };
}

/// Returns a handler for the methods that `P` describes.
#[doc(hidden)]
pub fn described<P, H, T, S>(handler: &H) -> MethodRouter<S>
where
    P: utoipa::Path,
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    P::methods()
        .iter()
        .fold(MethodRouter::new(), |router, method| router.on(method.to_method_filter(), handler.clone()))
}
