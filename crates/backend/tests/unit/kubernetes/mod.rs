//! Tests on a real cluster, which `ROUNDHOUSE_TEST_KUBECONFIG` names. Where it has no nodes, the tests play the
//! node's part: they bind Pods and write their statuses.

mod connection;
mod fencing;
mod lifecycle;
mod nodes;
mod specs;
mod support;
