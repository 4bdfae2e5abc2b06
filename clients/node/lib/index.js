// Everything that agents and clients import.
export { serve } from "./agent.js";
export { Unsendable } from "./checked.js";
export { Client, GaveUp, NotTakenUp, Request, UnreadableEvent } from "./client.js";
export { NotStored, connectAs, last, store } from "./connection.js";
export { requestId } from "./ids.js";
export { ToolError } from "./journal.js";
export { verify } from "./log.js";
export { Permanent, Retry, Turn } from "./turn.js";
