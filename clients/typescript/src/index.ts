/** Client of the Spillgate rate limiter. */
export { ClientAddress } from "./address.js";
export { type Call, type Options, Reservation, Spillgate } from "./client.js";
export * from "./decision.js";
