// Being found: the answers of NATS's service API (ADR-32), by hand, under the subjects that an agent may listen to.

/**
 * Answer pings from now on.
 *
 * @param {import("./connection.js").NatsConnection} nc
 * @param {{ name: string, version?: string, description?: string }} about
 * @param {string} instance
 */
export function answerPings(nc, { name, version = "0.0.0", description = "" }, instance) {
  const started = new Date().toISOString();
  const metadata = { role: "agent" };
  const base = { name, id: instance, version, metadata };
  const endpoint = { name: "inbox", subject: `mesh.evt.${name}.*`, queue_group: "" };
  const counts = { num_requests: 0, num_errors: 0, last_error: "", processing_time: 0, average_processing_time: 0 };
  const answers = {
    PING: { type: "io.nats.micro.v1.ping_response", ...base },
    INFO: { type: "io.nats.micro.v1.info_response", ...base, description, endpoints: [{ ...endpoint, metadata: {} }] },
    STATS: { type: "io.nats.micro.v1.stats_response", ...base, started, endpoints: [{ ...endpoint, ...counts }] },
  };
  for (const [verb, answer] of Object.entries(answers)) {
    for (const tail of ["", `.${name}`, `.${name}.${instance}`]) {
      nc.subscribe(`$SRV.${verb}${tail}`, { callback: (error, asked) => void (error ?? asked.respond(JSON.stringify(answer))) });
    }
  }
}
