//! The document of REST, judged by tools that are not ours.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use api::events::Log;
use api::rest::fake::Fake;
use api::{Guard, Server};
use e2e::python;
use serde_json::Value;

use crate::up;

/// An independent validator takes both committed documents.
#[test]
fn the_documents_are_openapi() -> Result<()> {
    for name in ["v1.json", "node.json"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi").join(name);
        let output = python::program("openapi-spec-validator")?.arg(&path).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{name}: {said}");
    }
    Ok(())
}

/// A control plane in memory behind the real server.
async fn serve(told: std::sync::mpsc::Sender<SocketAddr>) -> Result<()> {
    let limits = Guard::default().limits;
    let server = Server::bind(SocketAddr::from(([127, 0, 0, 1], 0)), None, limits).await?;
    told.send(server.local_addr()?)?;
    let instance = "00000000-0000-4000-8000-000000000001".parse()?;
    let events = Arc::new(Log::new(instance, 16.try_into()?));
    // A stream of events has no end: the tool would wait for it.
    events.close();
    let fake = Fake::at("2026-11-15T21:30:58.000Z".parse()?);
    server.run(api::rest::router(fake, events, Guard::default()), std::future::pending()).await;
    Ok(())
}

/// Schemathesis sends what fits the document and what does not, to every route: no answer is 500,
/// and every answer is one that the document promises.
#[test]
fn schemathesis_finds_no_500() -> Result<()> {
    let (told, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().map_err(anyhow::Error::from);
        runtime.and_then(|runtime| runtime.block_on(serve(told)))
    });
    let address = address.recv().context("the server did not start")?;
    let checks = format!("not_a_server_error,{ANY_BUT_SERVER_ERRORS}");
    let dir = tempfile::tempdir()?;
    passes(&mut schemathesis(&address.to_string(), &checks, (dir.path(), 20))?)
}

/// The same with a real control plane, a real store and real engines: what was sent is done. That
/// something takes too long here is no failure of REST, so each answer is looked at.
#[test]
fn schemathesis_finds_no_500_in_a_real_cluster() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let address = up::address(3);
    let words = ["--nodes", "2", "--pool-size", "2GiB", "--address", &address];
    let mut up = up::up_with(dir.path(), &words)?;
    let log = dir.path().join("answers.har");
    let mut tool = schemathesis(up.server()?, ANY_BUT_SERVER_ERRORS, (dir.path(), 3))?;
    tool.args(["--report", "har", "--report-har-path"]).arg(&log);
    // A stream of events has no end: the tool would wait for it.
    passes(tool.args(["--exclude-path", "/v1/events"]))?;
    let log: Value = serde_json::from_slice(&std::fs::read(log)?)?;
    let answers = log["log"]["entries"].as_array().context("a list")?;
    ensure!(answers.len() > 500, "only {} answers", answers.len());
    for answer in answers {
        ensure!(answer["response"]["status"] != 500, "{answer}");
    }
    ensure!(up.program.stop()?.success(), "{}", up.program.said());
    Ok(())
}

/// What every answer must be.
const ANY_BUT_SERVER_ERRORS: &str =
    "status_code_conformance,content_type_conformance,response_schema_conformance";

/// It runs in a folder that it may litter. Each route gets so many examples.
fn schemathesis(server: &str, checks: &str, (dir, examples): (&Path, u32)) -> Result<Command> {
    let mut tool = python::program("schemathesis")?;
    tool.args(["run", &format!("http://{server}/v1/openapi.json"), "--no-color"]);
    tool.current_dir(dir).args(["--checks", checks, "--max-examples", &examples.to_string()]);
    tool.args(["--phases", "examples,coverage,fuzzing", "--mode", "all", "--seed", "1"]);
    tool.args(["--request-timeout", "60", "--workers", "2", "--warnings", "off"]);
    Ok(tool)
}

fn passes(tool: &mut Command) -> Result<()> {
    let output = tool.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{said}");
    ensure!(said.contains(" passed"), "{said}");
    Ok(())
}
