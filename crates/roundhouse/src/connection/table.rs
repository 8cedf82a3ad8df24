//! Formats servers and connections as one table.

use api::assets::{AuthKind, Connection, Server};

use crate::terminal::{single_line, truncate_columns};

/// Renders a row per server, in the order of their names, and one per connection to a server that the catalog no
/// longer names; below each its error and its tools. Lines are cut to `columns`.
pub(super) fn render(servers: &[Server], connections: &[Connection], columns: Option<usize>) -> String {
    let known = servers.iter().map(|server| {
        let connection = connections.iter().find(|connection| connection.server == server.name);
        Row::new(&server.name, Some(server), connection)
    });
    let orphans = connections
        .iter()
        .filter(|connection| servers.iter().all(|server| server.name != connection.server))
        .map(|connection| Row::new(&connection.server, None, Some(connection)));
    let rows: Vec<_> = std::iter::once(Row::heading()).chain(known).chain(orphans).collect();
    let widest = |cell: fn(&Row) -> &str| rows.iter().map(|row| cell(row).chars().count()).max().unwrap_or(0);
    let (name, needs, status, tools) = (
        widest(|row| &row.name),
        widest(|row| &row.auth),
        widest(|row| &row.status),
        widest(|row| &row.tools),
    );
    let mut lines = Vec::new();
    for row in &rows {
        lines.push(format!(
            "{:name$}  {:needs$}  {:status$}  {:>tools$}  {}",
            row.name, row.auth, row.status, row.tools, row.description
        ));
        lines.extend(row.details.iter().map(|text| format!("{:name$}  {text}", "")));
    }
    let shown: Vec<_> = lines
        .iter()
        .map(|line| line.trim_end())
        .map(|line| columns.map_or_else(|| line.to_owned(), |columns| truncate_columns(line, columns)))
        .collect();
    shown.join("\n")
}

/// The cells of a row, and the lines below it.
struct Row {
    name: String,
    auth: String,
    status: String,
    tools: String,
    description: String,
    details: Vec<String>,
}

impl Row {
    fn heading() -> Self {
        Self {
            name: "SERVER".into(),
            auth: "NEEDS".into(),
            status: "STATUS".into(),
            tools: "TOOLS".into(),
            description: "PURPOSE".into(),
            details: Vec::new(),
        }
    }

    fn new(name: &str, server: Option<&Server>, connection: Option<&Connection>) -> Self {
        let one_line = |text: &str| single_line(text, usize::MAX);
        let needs = match server.map(|server| server.auth) {
            Some(AuthKind::None) => "nothing",
            Some(AuthKind::ApiKey) => "a key",
            Some(AuthKind::OAuth) => "sign-in",
            None => "-",
        };
        let error = connection.and_then(|connection| connection.error.as_deref());
        let tools =
            connection.map(|connection| connection.tools.join(", ")).filter(|names| !names.is_empty());
        Self {
            name: one_line(name),
            auth: needs.into(),
            status: connection.map_or("not connected", |connection| connection.status.name()).into(),
            tools: connection.map_or_else(|| "-".into(), |connection| connection.tools.len().to_string()),
            description: server.map(|server| one_line(&server.description)).unwrap_or_default(),
            details: error.map(one_line).into_iter().chain(tools.as_deref().map(one_line)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use api::Timestamp;
    use api::assets::{ConnectionStatus, TransportKind};

    use super::*;

    fn server(name: &str, description: &str, auth: AuthKind) -> Server {
        Server {
            name: name.into(),
            description: description.into(),
            transport: TransportKind::Http,
            auth,
            connected: false,
        }
    }

    fn connection(server: &str, status: ConnectionStatus, tools: &[&str], error: Option<&str>) -> Connection {
        Connection {
            connection: "conn_00000000000000000000000000000001".parse().unwrap(),
            server: server.into(),
            status,
            tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
            created_at: Timestamp::from_unix_ms(0),
            error: error.map(str::to_owned),
        }
    }

    fn sample() -> (Vec<Server>, Vec<Connection>) {
        let servers = vec![
            server("clock", "What time it is, and where", AuthKind::None),
            server("issues", "Issues\u{1b}[2J and\nboards", AuthKind::OAuth),
            server("mail", "", AuthKind::ApiKey),
        ];
        let connections = vec![
            connection(
                "gone",
                ConnectionStatus::Error,
                &["x"],
                Some("the catalog no longer names this server"),
            ),
            connection("clock", ConnectionStatus::Connected, &["now", "convert"], None),
            connection(
                "issues",
                ConnectionStatus::Expired,
                &[],
                Some("the authorization has expired: connect again"),
            ),
        ];
        (servers, connections)
    }

    #[test]
    fn servers_and_connections_are_one_table() {
        let (servers, connections) = sample();
        let expected = r"
SERVER  NEEDS    STATUS         TOOLS  PURPOSE
clock   nothing  connected          2  What time it is, and where
        now, convert
issues  sign-in  expired            0  Issues\u{1b}[2J and\nboards
        the authorization has expired: connect again
mail    a key    not connected      -
gone    -        error              1
        the catalog no longer names this server
        x";
        pretty_assertions::assert_eq!(render(&servers, &connections, None), expected.trim_start());
    }

    #[test]
    fn lines_end_where_the_terminal_does() {
        let (servers, connections) = sample();
        let shown = render(&servers, &connections, Some(50));
        assert!(shown.lines().all(|line| line.chars().count() <= 50), "{shown}");
        assert!(shown.contains("2  What time …\n"), "{shown}");
    }
}
