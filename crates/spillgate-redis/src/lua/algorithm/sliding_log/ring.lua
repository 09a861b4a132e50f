-- The ring of a sliding log, for sliding_log.lua and log_check.lua; each includes this file.

-- A record's body: count, period_us, incarnation, shift_us, last_us, used, head, places.
local BODY = '>I2I6I6I7I7I2I2I2'
-- A unit in the ring, its bytes, and the number from which its instant begins again at 0.
local UNIT, WIDTH, WRAP = '>I6', 6, 281474976710656

-- Returns whether a ring has enough places for the units that are needed, and not many times more.
-- @fragment is_apt(needed, places) -> apt
apt = needed <= places and places <= needed * 4 + 32
-- @end
