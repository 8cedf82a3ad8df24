/** All states of engines, in the order in which they are listed. */
export const STATES = ["running", "sleeping", "stopped", "failed", "provisioning", "destroying"];
