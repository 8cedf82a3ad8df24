//! The measurements, one module each. Every one gives quantities with one sample per round, and alternates with
//! its floors round by round: what else the machine does meets both.

mod admit;
mod deltas;
mod idle;
mod provision;
mod start;
mod streaming;
mod turn;

use clap::ValueEnum;

use crate::bench::Bench;
use crate::report::Quantity;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// An engine's start to its first /health that says ok, on a fresh brain.
    Start,
    /// An idle engine's memory.
    Idle,
    /// A warm turn: request to first delta at the client, above a client that talks to the provider directly.
    Turn,
    /// 2,000 deltas as fast as the provider sends them.
    Deltas,
    /// Admit of running engines over 32 connections.
    Admit,
    /// Provision, stop, start and delete of engines that are processes.
    Provision,
    /// All of these.
    All,
}

impl What {
    /// The measurements that it stands for.
    pub(crate) fn each(self) -> Vec<Self> {
        match self {
            Self::All => Self::value_variants().iter().copied().filter(|what| *what != Self::All).collect(),
            one => vec![one],
        }
    }

    /// Measures it.
    pub(crate) async fn measure(self, bench: &Bench) -> anyhow::Result<Vec<Quantity>> {
        match self {
            Self::Start => start::measure(bench),
            Self::Idle => idle::measure(bench).await,
            Self::Turn => turn::measure(bench).await,
            Self::Deltas => deltas::measure(bench).await,
            Self::Admit => admit::measure(bench).await,
            Self::Provision => provision::measure(bench).await,
            Self::All => Ok(Vec::new()),
        }
    }
}
