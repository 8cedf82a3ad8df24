//! Which pages the documentation has, in which order, in which part.

/// A part of the documentation.
pub(crate) struct Part {
    pub(crate) title: &'static str,
    /// The files of its pages, from the root of the repository, each with its short title.
    pub(crate) pages: &'static [(&'static str, &'static str)],
}

/// The page at `/docs`.
pub(crate) const INDEX: &str = "docs/README.md";
/// The page with the operations of both services, which is not made of a file.
pub(crate) const API: &str = "api";

/// All parts. Who writes a page adds it here, once; a test compares this with the folder.
pub(crate) const PARTS: &[Part] = &[
    Part {
        title: "Start",
        pages: &[
            (INDEX, "All pages"),
            ("README.md", "What Roundhouse is"),
            ("docs/tour.md", "A tour in ten minutes"),
            ("docs/glossary.md", "Glossary"),
        ],
    },
    Part {
        title: "Develop a product",
        pages: &[
            ("docs/guide-admit.md", "Admit users in your backend"),
            ("docs/guide-stream.md", "Stream and replay"),
            ("docs/guide-human.md", "Questions and approvals"),
            ("docs/memory.md", "Memory"),
            ("docs/skills.md", "Skills"),
            ("docs/connections.md", "Connections"),
            ("docs/user-mcp-servers.md", "Users' own tool servers"),
            ("docs/usage.md", "Usage, costs and budgets"),
            ("docs/scripted-provider.md", "Testing with a script"),
            ("docs/catalog.md", "The catalog"),
            ("docs/models.md", "Models"),
            ("docs/tools.md", "Tools"),
            ("docs/hooks.md", "Hooks"),
            ("docs/web-fetch.md", "Fetching from the web"),
            ("docs/web-search.md", "Web search and citations"),
            ("docs/conversations.md", "Conversations"),
            ("docs/turn-options.md", "Options of a turn"),
            ("docs/busy-tasks.md", "Busy tasks"),
            ("docs/without-a-stream.md", "Turns without a stream"),
            ("docs/approvals.md", "Approvals"),
            ("docs/inbox.md", "Inbox"),
            ("docs/schedules.md", "Schedules"),
            ("docs/documents.md", "Documents"),
            ("docs/files.md", "Files"),
            ("docs/learning.md", "Learning"),
            ("docs/webhooks.md", "Webhooks"),
            ("docs/audit-webhooks.md", "Webhooks of the audit log"),
            ("docs/browser-tokens.md", "Browser tokens"),
            ("docs/idempotency.md", "Repeating a call"),
            ("docs/deleting.md", "Deleting"),
            ("docs/cassettes.md", "Cassettes"),
            ("docs/python.md", "Python client"),
            ("docs/typescript.md", "TypeScript client"),
            ("docs/openai-api.md", "OpenAI's API"),
            ("docs/mcp-server.md", "MCP server"),
            ("docs/a2a.md", "Agent2Agent"),
            ("docs/ag-ui.md", "AG-UI"),
            ("docs/acp.md", "Agent Client Protocol"),
        ],
    },
    Part {
        title: "At the terminal and in the browser",
        pages: &[
            ("docs/console.md", "Console"),
            ("docs/command-line.md", "Command line"),
            ("docs/chat.md", "Chat"),
            ("docs/connections-cli.md", "Connections at the terminal"),
        ],
    },
    Part {
        title: "Operate",
        pages: &[
            ("docs/guide-operate.md", "From one host to many"),
            ("deploy/README.md", "Deploying"),
            ("docs/operating.md", "Operating"),
            ("docs/kubernetes.md", "Kubernetes"),
            ("docs/helm.md", "Helm"),
            ("docs/monitoring.md", "Monitoring and alerts"),
            ("docs/tracing.md", "Tracing"),
            ("docs/logging.md", "Logging"),
            ("docs/backup.md", "Backup and restore"),
            ("docs/rollouts.md", "Rollouts"),
            ("docs/warm-pool.md", "Warm pool"),
            ("docs/scaling.md", "Capacity and scaling"),
            ("docs/fleet-usage.md", "Usage of the fleet"),
            ("docs/sandbox.md", "Sandbox"),
            ("SECURITY.md", "Security"),
            ("CHANGELOG.md", "Changelog"),
        ],
    },
    Part {
        title: "Look it up",
        pages: &[
            (API, "Every endpoint"),
            ("docs/events.md", "Every event"),
            ("docs/errors.md", "Every error code"),
            ("docs/configuration.md", "Every variable"),
            ("docs/api-notes.md", "API notes"),
            ("docs/openapi.md", "OpenAPI"),
            ("docs/contract.md", "The contract"),
        ],
    },
    Part {
        title: "Change the code",
        pages: &[
            ("CONTRIBUTING.md", "Contributing"),
            ("docs/architecture.md", "Architecture"),
            ("docs/adding-a-provider.md", "Adding a model provider"),
            ("docs/adding-a-tool.md", "Adding a tool"),
            ("docs/adding-an-endpoint.md", "Adding an endpoint"),
            ("docs/adding-a-backend.md", "Adding a backend"),
            ("docs/regressions.md", "Regressions"),
            ("docs/kubernetes-test-cluster.md", "Kubernetes for tests"),
            ("testing/chaos/README.md", "Chaos"),
            ("testing/bench/README.md", "Benchmarks"),
            ("docs/decisions/0001-own-wire-protocols.md", "Own wire protocols"),
            ("docs/decisions/0002-one-writer-stored-before-seen.md", "One writer, stored before seen"),
            ("docs/decisions/0003-engines-as-processes.md", "Engines as processes"),
            ("docs/decisions/0004-containers.md", "Containers"),
            ("docs/decisions/0005-compaction-and-sub-agents.md", "Compaction and sub-agents"),
            ("docs/decisions/0006-tool-servers.md", "Tool servers"),
            ("docs/decisions/0007-order-of-code.md", "Order of code"),
            ("docs/decisions/0008-shared-pages.md", "Shared pages"),
            ("docs/decisions/0009-pods.md", "Pods"),
            ("docs/decisions/0010-fixed-address.md", "Fixed address"),
        ],
    },
];

/// The files that all pages are made of.
pub(crate) fn sources() -> impl Iterator<Item = &'static str> {
    PARTS.iter().flat_map(|part| part.pages).map(|(file, _)| *file).filter(|file| *file != API)
}

/// The name of a file's page in its address, which is empty for the index.
pub(crate) fn slug(file: &str) -> String {
    match file {
        INDEX => String::new(),
        "deploy/README.md" => "deploying".to_owned(),
        _ => {
            let path = file.strip_suffix("/README.md").unwrap_or(file);
            let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
            name.strip_suffix(".md").unwrap_or(name).to_lowercase()
        }
    }
}
