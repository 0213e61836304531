//! `octomesh status`.
use super::{CliError, Context, Exit, render};
use crate::api::types::StatusReply;

pub(super) async fn run(context: &Context) -> Result<Exit, CliError> {
    let reply: StatusReply = context.client()?.get(&["api", "mesh", "status"]).await?;
    context.screen.show(&reply, text)?;
    Ok(Exit::Ok)
}

fn text(r: &StatusReply) -> String {
    let mut lines = vec![
        format!("{} ({}), {}", r.name, r.node_id, r.state),
        format!("version    {}, up {}", r.version, render::seconds(r.uptime_secs)),
        format!("listens on {}", r.transport.bind_addr),
        format!("sessions   {}, identities {}", r.transport.encryption, r.transport.identity),
        format!(
            "mesh       {} alive, {} suspect, {} down",
            r.membership.alive, r.membership.suspect, r.membership.dead
        ),
        format!("steps      {} of {} slots running, {} waiting", r.running, r.slots, r.queued),
        format!(
            "routed     {} out, {} in, {} failed over",
            r.routing.tasks_routed_out, r.routing.tasks_routed_in, r.routing.tasks_failed_over
        ),
        format!("tools      {} (lazy: {})", r.capabilities.len(), r.lazy_tools),
        format!("sandbox    {}", r.sandbox),
        format!("engines    {}", r.engines.join(", ")),
    ];
    lines.extend(r.discovery.interfaces.iter().map(|i| match &i.problem {
        Some(problem) => format!("mdns       {}: {problem}", i.interface),
        None => format!("mdns       {}: {} heard", i.interface, i.heard),
    }));
    lines.extend(r.relayed.iter().map(|m| format!("relayed    {} {}", m.name, render::via(&m.relay))));
    if !r.region.is_empty() {
        lines.push(format!("region     {}", r.region));
    }
    for (place, gpu) in r.gpus.iter().enumerate() {
        let free = gpu.vram_free.map_or_else(|| "unknown".to_owned(), render::size);
        let reserved = gpu.reserved.filter(|bytes| *bytes > 0);
        let reserved =
            reserved.map(|bytes| format!(", {} reserved", render::size(bytes))).unwrap_or_default();
        let busy = gpu.busy_percent.map(|percent| format!(", {percent} % busy")).unwrap_or_default();
        lines.push(format!(
            "gpu {place}      {}, {free} of {} free{reserved}{busy}, {}",
            gpu.name,
            render::size(gpu.vram_total),
            super::nodes::read(gpu)
        ));
    }
    for model in &r.models {
        let size = model.bytes.map(|bytes| format!(", {}", render::size(bytes))).unwrap_or_default();
        let gpu =
            model.vram.map(|bytes| format!(", {} of it on GPUs", render::size(bytes))).unwrap_or_default();
        let slots =
            model.slots.zip(model.slots_busy).map(|(all, busy)| format!(", {busy} of {all} slots busy"));
        lines.push(format!(
            "model      {}{size}{gpu}{}, {}",
            model.name,
            slots.unwrap_or_default(),
            model.server
        ));
    }
    if r.gpus.is_empty() {
        lines.extend(r.gpus_absent.iter().map(|absent| format!("no gpu     {}", absent.detail)));
    }
    lines.extend(r.not_ready.iter().map(|why| format!("not ready: {why}")));
    lines.extend(r.warnings.iter().map(|warning| format!("warning: {warning}")));
    lines.join("\n")
}
