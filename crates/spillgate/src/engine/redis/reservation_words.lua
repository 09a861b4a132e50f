-- Words of reservations, for bucket_reservation.lua and reservation.lua.

-- The bytes of a record before what its counters were charged.
local HEAD = 40
-- What became of a record at OPEN. ENDED is for one that expired; the last two bits of the mark that ended it are added.
local NEW, REPEATED, CONFLICT, REFUSED, ENDED = 0, 1, 2, 3, 4
-- What a CLOSE does, and how it went.
local ENDS, UNDOES, RENEWS, LOOKS = 0, 1, 2, 3
local DONE, AGAIN, EXPIRED, UNKNOWN, OTHERWISE, OTHER_COUNTERS = 0, 1, 2, 3, 4, 5
-- Leaves a counter as it was charged.
local AS_CHARGED = 2199023255552
