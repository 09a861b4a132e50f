/** Client of the Spillgate rate limiter. */
export { ClientAddress } from "./address.js";
export { Spillgate } from "./client.js";
export { Denied, ProblemError, TokenError, Unavailable } from "./errors.js";
export { Reservation } from "./reservation.js";
export * from "./types.js";
