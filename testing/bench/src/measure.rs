//! The measurements, one module each. Each returns quantities with one sample per round, and alternates with its
//! baselines round by round, so that other load on the machine affects both.

mod admit;
mod admit_postgres;
mod audit_log;
mod bytes_per_turn;
mod containers;
mod deltas;
mod fairness;
mod files;
mod fleet;
mod fronts;
mod idle;
mod large_brain_start;
mod lifecycles;
mod list;
mod many_turns;
mod noisy_product;
mod parallel;
mod pods;
mod provision;
mod reads;
mod recall;
mod replay;
mod sandbox;
mod start;
mod streaming;
mod tool_calls;
mod turn;

use clap::ValueEnum;

pub(crate) use self::containers::per_second;
pub(crate) use self::lifecycles::LifecycleTimes;

use crate::context::BenchContext;
use crate::report::Quantity;

/// A measurement, named by its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Measurement {
    /// An engine's start to its first successful /health, on a fresh brain.
    Start,
    /// The memory of one of 50 idle engines.
    Idle,
    /// A warm turn: request to first delta at the client, compared with a client that calls the provider directly.
    Turn,
    /// 2,000 deltas as fast as the provider sends them.
    Deltas,
    /// First delta and 2,000 deltas through other protocols than the engine's own.
    Fronts,
    /// 10 and 100 concurrent turns, 200 deltas/s each: the lag of a delta and the lead of event timestamps.
    Parallel,
    /// The first delta of a turn that recalls memories, compared with one that does not, at 10,000 messages.
    Recall,
    /// A turn of 100 tool calls, in the engine and in the sandbox.
    ToolCalls,
    /// Replay of a task with 100,000 events (10,000 without --full).
    Replay,
    /// Upload and download of 1 GiB (64 MiB without --full).
    Files,
    /// An engine's start on a brain of 100,000 messages (10,000 without --full).
    BigStart,
    /// Memory after 10,000 turns (1,000 without --full), and the idle engine's processor time afterwards.
    ManyTurns,
    /// Bytes that a turn writes, early and late in a thread of 1,000 turns (200 without --full).
    BytesPerTurn,
    /// Admit of running engines over 32 connections, among 10, 1,000 and 100,000 engines.
    Admit,
    /// The same with the registry in PostgreSQL.
    AdmitPostgres,
    /// Pages of 100 out of 100,000 engines.
    List,
    /// /status, /metrics and /audit over an audit log of 1,000,000 rows (100,000 without --full).
    Ledger,
    /// Provision, stop, start, wake and delete of engines as processes.
    Provision,
    /// Provision, stop, start, wake and delete of engines as containers, and concurrent provisions.
    Containers,
    /// Provision, stop, start, wake and delete of engines as Pods.
    Pods,
    /// 1,000 running engines (100 without --full): supervision, memory, restart of a killed orchestrator.
    Fleet,
    /// Admits of one product while another causes maximum load.
    Fairness,
    /// `true` in the sandbox, compared with a bare fork and exec.
    Sandbox,
    /// All of the above.
    All,
}

impl Measurement {
    /// Returns the measurements that this value stands for.
    pub(crate) fn expand(self) -> Vec<Self> {
        match self {
            Self::All => Self::value_variants().iter().copied().filter(|what| *what != Self::All).collect(),
            one => vec![one],
        }
    }

    /// Runs the measurement.
    pub(crate) async fn measure(self, bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
        match self {
            Self::Start => start::measure(bench),
            Self::Idle => idle::measure(bench).await,
            Self::Turn => turn::measure(bench).await,
            Self::Deltas => deltas::measure(bench).await,
            Self::Fronts => fronts::measure(bench).await,
            Self::Parallel => parallel::measure(bench).await,
            Self::Recall => recall::measure(bench).await,
            Self::ToolCalls => tool_calls::measure(bench).await,
            Self::Replay => replay::measure(bench).await,
            Self::Files => files::measure(bench).await,
            Self::BigStart => large_brain_start::measure(bench).await,
            Self::ManyTurns => many_turns::measure(bench).await,
            Self::BytesPerTurn => bytes_per_turn::measure(bench).await,
            Self::Admit => admit::measure(bench).await,
            Self::AdmitPostgres => admit_postgres::measure(bench).await,
            Self::List => list::measure(bench).await,
            Self::Ledger => audit_log::measure(bench).await,
            Self::Fleet => fleet::measure(bench).await,
            Self::Fairness => fairness::measure(bench).await,
            Self::Provision => provision::measure(bench).await,
            Self::Containers => containers::measure(bench).await,
            Self::Pods => pods::measure(bench).await,
            Self::Sandbox => sandbox::measure(bench).await,
            Self::All => Ok(Vec::new()),
        }
    }
}
