//! How an engine shows the control plane that it is there.
//!
//! Nothing waits for the control plane: an engine serves without it, and tries again.

use std::time::Duration;

use api::heartbeat::{self, Deregister, HeartbeatAck};
use api::node::NodeInfo;
use api::{CallError, Client, NoBody, NoQuery};
use model::{Heartbeat, StoreMark};
use tokio::sync::watch;

use super::engine::Engine;

/// How long after a failure the next one is sent.
const AGAIN: Duration = Duration::from_secs(1);
/// A control plane is not asked more often, and not less often, than this.
const LEAST: Duration = Duration::from_millis(100);
const MOST: Duration = Duration::from_mins(1);

/// Sends heartbeats until `stop` says so, then a deregistration. Of several control planes one
/// leads: the one that heard the last heartbeat gets the next, and the others are tried in turn as
/// soon as it does not.
///
/// A heartbeat says that the engine does its work. None is sent while a reactor does not answer, so
/// that the control plane moves its targets.
///
/// Each says how far the store had come, as the control plane last told it; what it tells is
/// durable before the next heartbeat says so.
pub(super) async fn run(clients: Vec<Client>, engine: Engine, mut stop: watch::Receiver<bool>) {
    let info = engine.0.info.clone();
    let mut told = engine.mark().await;
    let mut was_heard = None;
    let mut trouble = String::new();
    let mut hears = 0;
    loop {
        if !is_alive(&engine, &mut stop).await {
            break;
        }
        let sent = tokio::select! {
            sent = beat_any(&clients, &mut hears, (&info, told)) => sent,
            // An error: whoever would have said so is gone.
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let is_heard = sent.is_ok();
        // Once for each reason: one that could not be reached may refuse later.
        let reason = sent.as_ref().err().map(ToString::to_string).unwrap_or_default();
        if was_heard != Some(is_heard) || trouble != reason {
            match &sent {
                Ok(_) => tracing::info!("registered with the control plane"),
                Err(error) => tracing::warn!(%error, "heartbeat failed; will retry"),
            }
            (was_heard, trouble) = (Some(is_heard), reason);
        }
        let mark = sent.as_ref().ok().and_then(|heard| heard.mark);
        // A lower number of the same store says that it went back; what this engine was told is
        // then all that shows it.
        let is_news = |mark: &StoreMark| {
            told.is_none_or(|told| told.store != mark.store || mark.is_after(told))
        };
        if let Some(mark) = mark.filter(is_news)
            && engine.keep_mark(mark).await
        {
            told = Some(mark);
        }
        let wait = sent.map_or(AGAIN, |heard: HeartbeatAck| heard.next_in().clamp(LEAST, MOST));
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    if let Some(client) = clients.get(hears).filter(|_| was_heard == Some(true)) {
        let farewell = Deregister { instance: info.instance };
        let at = (info.name.clone(),);
        match client.call(&heartbeat::DEREGISTER_NODE, at, farewell, NoBody).await {
            Ok(_) => tracing::info!("deregistered from the control plane"),
            Err(error) => tracing::warn!(%error, "deregistration failed"),
        }
    }
}

/// Waits until every reactor answers; whether that was before it is told to stop.
async fn is_alive(engine: &Engine, stop: &mut watch::Receiver<bool>) -> bool {
    let mut is_told = false;
    let answers = async {
        while let Err(problem) = engine.is_alive().await {
            if !std::mem::replace(&mut is_told, true) {
                tracing::error!(%problem, "no heartbeats are sent: a reactor does not answer");
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    tokio::select! {
        () = answers => true,
        _ = stop.wait_for(|stop| *stop) => false,
    }
}

/// One heartbeat to the first that hears it, beginning with whoever heard the last; the error is
/// that of the last one tried.
async fn beat_any(
    clients: &[Client],
    hears: &mut usize,
    (info, told): (&NodeInfo, Option<StoreMark>),
) -> Result<HeartbeatAck, CallError> {
    let mut last = None;
    let first = *hears;
    for (index, client) in clients.iter().enumerate().cycle().skip(first).take(clients.len()) {
        match beat(client, info, told).await {
            Ok(heard) => {
                *hears = index;
                return Ok(heard);
            }
            Err(error) => last = Some(error),
        }
    }
    let none = || CallError::Unsendable { reason: "no control plane is known".to_owned() };
    Err(last.unwrap_or_else(none))
}

async fn beat(
    client: &Client,
    info: &NodeInfo,
    told: Option<StoreMark>,
) -> Result<HeartbeatAck, CallError> {
    let NodeInfo { instance, version, address, .. } = info.clone();
    let beat = Heartbeat { instance, version, address, told };
    client.call(&heartbeat::NODE, (info.name.clone(),), NoQuery {}, beat).await
}
