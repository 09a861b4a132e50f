-- The numbers of reservations, for bucket_reservation.lua and reservation.lua.

-- The bytes of a record before the charges of its counters.
local HEAD = 40
-- Results of OPEN. ENDED means expired; the last two bits of the mark of another ending are added to it.
local NEW, REPEATED, CONFLICT, REFUSED, ENDED = 0, 1, 2, 3, 4
-- Kinds of CLOSE, and its results.
local ENDS, UNDOES, RENEWS, LOOKS = 0, 1, 2, 3
local DONE, AGAIN, EXPIRED, UNKNOWN, OTHERWISE, OTHER_COUNTERS = 0, 1, 2, 3, 4, 5
-- A final charge that leaves the counter as it was charged.
local AS_CHARGED = 2199023255552
