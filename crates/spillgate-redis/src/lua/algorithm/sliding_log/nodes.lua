-- The nodes of a sliding log, for sliding_log.lua and log_check.lua; each includes this file.

-- The bytes of base_us and the format, and the most bytes of a node. With the overhead of a hash entry, a
-- full node takes the allocator's 512 bytes.
local HEAD_SIZE, CHUNK_MAX = 12, 506
-- A record's body: count, period_us, incarnation, shift_us, last_us, used, oldest, tail, head, place. A
-- node's field in the hash: level, number.
local BODY, FIELD = '>I3I6I6I7I7I4I5I5I5I1', '>I1I5'

local function node_of(text)
    local base_us, format = unpack_record('>I7c5', text)
    local _, _, at_width, _, units_width = byte(format, 1, 5)
    local width = at_width + units_width - 96
    return {
        text = text, size = (#text - HEAD_SIZE) / width, base_us = base_us, format = format,
        at_width = at_width - 48, units_width = units_width - 48, width = width,
    }
end

-- Returns the instant of an entry, and the units up to and including it.
local function entry(node, place)
    if place == 0 then
        return 0, 0
    end
    local at_us, through = unpack_record(node.format, node.text, HEAD_SIZE + 1 + (place - 1) * node.width)
    -- Entries of one unit each store no units: their place is the sum.
    if node.units_width == 0 then
        through = place
    end
    return node.base_us + at_us, through
end

-- Returns whether enough entries of a one-chunk log have expired to drop them. A log that fits one chunk stays in one.
-- @fragment is_worn(place, size) -> worn
worn = place >= 8 and place * 2 >= size
-- @end

-- Returns whether a chunk with entries has no room for one more entry of an instant.
-- @fragment is_full(node, clock_us) -> full
full = #node.text + node.width > CHUNK_MAX or clock_us - node.base_us >= 256 ^ node.at_width
-- @end
