//! `holdfast explain`: why a thing is as it is, and what a person can do.

use std::fmt::Write as _;
use std::io::Write;

use anyhow::Result;
use api::rest::{Control, DryRun, DryRunRequest, ExplainQuery, Explanation, Remote};
use clap::Args;

use super::client_args::ClientArgs;
use super::event;
use super::format;
use super::out::Out;

/// Options of `explain`.
#[derive(Args)]
pub(crate) struct ExplainArgs {
    /// A name or an id; the beginning of an id is enough, and KIND/NAME says which kind is meant
    #[arg(value_name = "THING")]
    thing: String,
    #[command(flatten)]
    ask: ClientArgs,
}

impl ExplainArgs {
    pub(crate) async fn run(self, to: &mut (dyn Write + Send)) -> Result<()> {
        let (remote, mut out) = self.ask.open(to, true)?;
        let show = async |out: &mut Out<'_>| {
            let asked = ExplainQuery { thing: self.thing.clone() };
            let explained = remote.explain(asked).await?;
            out.done(page(&explained).trim_end(), &explained)
        };
        out.show(&remote, show).await
    }
}

/// For people.
fn page(explained: &Explanation) -> String {
    let Explanation { subject, wanted, seen, operation, waits_for, refusal, next, .. } = explained;
    let mut text = format!("{subject}\n");
    let mut list = |name: &str, lines: &[String]| {
        for (line, at) in lines.iter().zip(0..) {
            let name = if at == 0 { name } else { "" };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name:<12}{line}");
        }
    };
    list("wanted", wanted);
    list("seen", seen);
    let under_way = operation.as_ref().map(|operation| {
        let age = operation.age_seconds.map(|age| format!(", for {age} s")).unwrap_or_default();
        format!("{}{age}", operation.what)
    });
    list("under way", &under_way.into_iter().collect::<Vec<_>>());
    list("waits for", waits_for);
    let refused = refusal.as_ref().map(|refusal| {
        format!("{}  {}: {}", format::time(refusal.at), refusal.subject, refusal.problem)
    });
    list("refused", &refused.into_iter().collect::<Vec<_>>());
    let next = next.as_ref().map(|next| format!("{}, at {}", next.what, format::time(next.at)));
    list("next", &next.into_iter().collect::<Vec<_>>());
    list("you can", &explained.remedies);
    if !explained.events.is_empty() {
        text.push('\n');
        explained.events.iter().for_each(|event| text.push_str(&event::line(event)));
    }
    text
}

/// Shows what a change would do.
pub(crate) async fn try_out(
    remote: &Remote,
    out: &mut Out<'_>,
    request: DryRunRequest,
) -> Result<()> {
    let tried = remote.dry_run(request).await?;
    let DryRun { changes, steps } = &tried;
    let mut said = String::new();
    for (what, lines) in [("would be written", changes), ("would follow", steps)] {
        for line in lines {
            writeln!(said, "{what}: {line}")?;
        }
    }
    if said.is_empty() {
        "nothing would change".clone_into(&mut said);
    }
    out.done(said.trim_end(), &tried)
}
