-- Sliding log: in every half-open window of one period, admitted <= count, exactly.
--
-- The same as sliding_log.rs, name by name, with sliding_log/entries.rs: entries fill chunks, a
-- full chunk closes and becomes one entry of a node above it, and so on, so that every search and
-- every change reads and writes a few nodes of half a kilobyte at most.
--
-- Longer than 450 lines because the script joins one file for each algorithm, and a log is a tree.
--
-- Numbers: count, period_us, at_width (bytes of an entry's instant)
-- Reply:   used, retry_after_us, reset_after_us
-- Body:    kind 5: count, period_us, incarnation, shift_us, last_us, used, oldest, tail, head, place
-- Own key: a hash of nodes; field: level, number; value: base_us, the format of an entry, entries:
--          the instant after base_us, and the units of the node through this entry (of no bytes
--          where each has one unit, so that they are the entry's place)

local LOG = 5
local BODY = '>I3I6I6I7I7I4I5I5I5I1'
-- base_us and the format.
local HEAD_SIZE = 12
-- With what a hash adds to it, a chunk fills the allocator's 512 bytes.
local CHUNK_MAX = 506
-- How many nodes one above them stands for, and the topmost level.
local FANOUT, TOP = 32, 3
-- More than one, so that expired chunks get fewer; few, so that an admission stays cheap.
local FREED_MOST = 4

local function numbers(program, i)
    return { count = program[i], period_us = program[i + 1], at_width = program[i + 2] }, i + 3
end

local function untouched(cell)
    cell.used, cell.clock_us, cell.ahead_us, cell.shift_us = 0, now, 0, 0
    cell.incarnation, cell.gone_after_us = 0, nil
    return cell
end

-- Bytes that the units of entries take, given all of them and the number of entries.
local function width_of(units, size)
    if units == size then
        return 0
    end
    return (units < 256 and 1) or (units < 65536 and 2) or (units < 16777216 and 3) or 4
end

local function new_node(base_us, at_width, units_width)
    local format = string.char(62, 73, 48 + at_width, 73, 48 + units_width)
    return {
        text = struct.pack('>I7c5', base_us, format), size = 0, base_us = base_us, format = format,
        at_width = at_width, units_width = units_width, width = at_width + units_width,
    }
end

local function node_of(text)
    local base_us, format = struct.unpack('>I7c5', text)
    local _, _, at_width, _, units_width = string.byte(format, 1, 5)
    local width = at_width + units_width - 96
    return {
        text = text, size = (#text - HEAD_SIZE) / width, base_us = base_us, format = format,
        at_width = at_width - 48, units_width = units_width - 48, width = width,
    }
end

local function field_of(level, number)
    return struct.pack('>I1I5', level, number)
end

local function node_at(cell, level, number)
    local field = field_of(level, number)
    local node = cell.nodes[field]
    if not node then
        local text = redis.call('HGET', cell.own_key, field)
        node = text and node_of(text) or new_node(0, 7, 6)
        cell.nodes[field] = node
    end
    return node
end

-- The instant and the units through an entry of a node.
local function entry(node, place)
    if place == 0 then
        return 0, 0
    end
    local at_us, through =
        struct.unpack(node.format, node.text, HEAD_SIZE + 1 + (place - 1) * node.width)
    if node.units_width == 0 then
        through = place
    end
    return node.base_us + at_us, through
end

-- The number of a level's node that is not closed yet; above chunks it may still have nothing.
local function open_number(cell, level)
    return math.floor(cell.tail / FANOUT ^ level)
end

-- The first place at or behind the one given before an entry at or after from_us with which at
-- least `unit` units lie behind the one given, the units in between, and the entry's instant; the
-- end if there is none. A place is a chunk and the number of its entries before.
local function seek(cell, number, place, from_us, unit)
    local level, passed = 0, 0
    while true do
        local node = node_at(cell, level, number)
        local _, before = entry(node, place)
        local found, beyond, step = place, node.size + 1, 1
        local found_through, at_us = before, nil
        while beyond - found > 1 do
            local middle = found + step
            if middle >= beyond then
                middle = math.floor((found + beyond) / 2)
            end
            local middle_us, through = entry(node, middle)
            if middle_us >= from_us and passed + through - before >= unit then
                beyond, at_us = middle, middle_us
            else
                found, found_through, step = middle, through, step * 2
            end
        end
        passed = passed + found_through - before
        if level == 0 and (found < node.size or number == cell.tail) then
            return number, found, passed, at_us
        elseif found < node.size then
            level, number, place = level - 1, number * FANOUT + found, 0
        elseif number == open_number(cell, level) then
            level, number, place = level - 1, open_number(cell, level - 1), 0
        elseif level == TOP then
            number, place = number + 1, 0
        else
            level, number, place = level + 1, math.floor(number / FANOUT), number % FANOUT + 1
        end
        -- No entry is empty, but closed nodes may be: they are nowhere to stop at.
        unit = math.max(unit, passed + 1)
    end
end

local function load(value, kind, at, limit, own_key)
    local cell = untouched({ own_key = own_key, nodes = {}, stored = {} })
    if not at then
        return cell
    end
    local count, period_us, incarnation, shift_us, last_us, used, oldest, tail, head, place =
        struct.unpack(BODY, value, at)
    local clock_us, ahead_us = now + shift_us, 0
    if clock_us - last_us >= math.min(period_us, limit.period_us) then
        return cell
    end
    if clock_us < last_us then
        ahead_us = last_us - clock_us
        if ahead_us > math.min(1000000, limit.period_us) then
            cell.rebased, shift_us, ahead_us = true, shift_us + ahead_us, 0
        end
        clock_us = last_us
    end
    local fields = { field_of(0, head), tail > head and field_of(0, tail) or nil }
    local texts = redis.pcall('HMGET', own_key, unpack(fields))
    if texts.err then
        return
    end
    for i, field in ipairs(fields) do
        if not texts[i] then
            -- Evicted: what it held is lost.
            cell.rebased = nil
            return cell
        end
        cell.nodes[field] = node_of(texts[i])
    end
    cell.oldest, cell.tail, cell.last_us = oldest, tail, last_us
    local expired
    cell.head, cell.place, expired =
        seek(cell, head, place, clock_us + 1 - limit.period_us, 0)
    cell.used, cell.clock_us, cell.ahead_us, cell.shift_us = used - expired, clock_us, ahead_us, shift_us
    if not cell.rebased and period_us ~= limit.period_us then
        cell.gone_after_us = last_us - clock_us + period_us + ahead_us
    elseif not cell.rebased and count == limit.count then
        cell.incarnation = incarnation
    end
    return cell
end

local function has_room(cell, limit, cost)
    return cell.used + cost <= limit.count
end

local function store(cell, level, number, node)
    local field = field_of(level, number)
    cell.nodes[field], cell.stored[field] = node, node
end

local function push(node, at_us, through)
    node.text = node.text .. struct.pack(node.format, at_us - node.base_us, through)
    node.size = node.size + 1
end

-- A node from its `first` entry on, with room for units that wide.
local function rewritten(node, first, units_width)
    local _, dropped = entry(node, first - 1)
    local base_us = node.size == 0 and node.base_us or entry(node, first)
    local new = new_node(base_us, node.at_width, units_width)
    local texts = { new.text }
    for place = first, node.size do
        local at_us, through = entry(node, place)
        texts[#texts + 1] = struct.pack(new.format, at_us - new.base_us, through - dropped)
    end
    new.text, new.size = table.concat(texts), node.size - first + 1
    return new
end

-- Closes the open chunk and opens the next; a node above that is full with it closes as well.
local function close(cell, limit)
    local level, number = 0, cell.tail
    local node = node_at(cell, 0, number)
    local _, units = entry(node, node.size)
    local units_width = width_of(units, node.size)
    repeat
        local at_us, through = entry(node, node.size)
        local last = number % FANOUT == FANOUT - 1
        level, number = level + 1, math.floor(number / FANOUT)
        node = node_at(cell, level, number)
        local _, before = entry(node, node.size)
        push(node, at_us, before + through)
        store(cell, level, number, node)
    until not last or level == TOP
    cell.tail = cell.tail + 1
    node = new_node(cell.clock_us, limit.at_width, units_width)
    store(cell, 0, cell.tail, node)
    return node
end

-- Undoes a close, where nothing is left of what came after.
local function reopen(cell)
    cell.tail = cell.tail - 1
    local level, number = 0, cell.tail
    repeat
        local last = number % FANOUT == FANOUT - 1
        level, number = level + 1, math.floor(number / FANOUT)
        local node = node_at(cell, level, number)
        node.text, node.size = string.sub(node.text, 1, -1 - node.width), node.size - 1
        store(cell, level, number, node)
    until not last or level == TOP
end

local function append(cell, limit, units)
    local node = node_at(cell, 0, cell.tail)
    local last_us, through = entry(node, node.size)
    if node.size > 0 and last_us == cell.clock_us then
        node.text, node.size = string.sub(node.text, 1, -1 - node.width), node.size - 1
    else
        if cell.head == cell.tail and cell.place >= 8 and cell.place * 2 >= node.size then
            -- A log that fits in one chunk stays in one.
            local _, expired = entry(node, cell.place)
            node = rewritten(node, cell.place + 1, node.units_width)
            cell.place, through = 0, through - expired
        end
        if node.size == 0 then
            node = new_node(cell.clock_us, limit.at_width, node.units_width)
        elseif #node.text + node.width > CHUNK_MAX
            or cell.clock_us - node.base_us >= 256 ^ node.at_width then
            store(cell, 0, cell.tail, node)
            node, through = close(cell, limit), 0
        end
    end
    through = through + units
    local units_width = width_of(through, node.size + 1)
    if units_width > node.units_width then
        node = rewritten(node, 1, units_width)
    end
    push(node, cell.clock_us, through)
    store(cell, 0, cell.tail, node)
end

-- A node's text with so many units less from the entry behind a place on; an entry that has none
-- left goes, but where it stands for a closed node.
local function lowered(node, place, units, level)
    local size = HEAD_SIZE + place * node.width
    if node.units_width == 0 then
        return string.sub(node.text, 1, size) .. string.sub(node.text, size + node.width + 1)
    end
    local _, before = entry(node, place)
    local texts = { string.sub(node.text, 1, size) }
    for at = size + 1, #node.text, node.width do
        local at_us, through = struct.unpack(node.format, node.text, at)
        through = through - units
        if level > 0 or through > before then
            texts[#texts + 1] = struct.pack(node.format, at_us, through)
        end
    end
    return table.concat(texts)
end

-- Takes units from the entry behind a place, which has at least as many; it goes when it has none
-- left.
local function lower_entry(cell, number, place, units)
    local level = 0
    while true do
        local node = node_at(cell, level, number)
        node.text = lowered(node, place, units, level)
        node.size = (#node.text - HEAD_SIZE) / node.width
        store(cell, level, number, node)
        if level == TOP or number == open_number(cell, level) then
            break
        end
        level, number, place = level + 1, math.floor(number / FANOUT), number % FANOUT
    end
    for _ = 1, math.min(FREED_MOST, cell.tail - cell.oldest) do
        if node_at(cell, 0, cell.tail).size == 0 then
            reopen(cell)
        end
    end
end

local function charge(cell, limit, cost)
    if cell.used == 0 then
        cell.oldest, cell.tail, cell.head, cell.place = 0, 0, 0, 0
        cell.nodes, cell.stored, cell.fresh = {}, {}, true
        store(cell, 0, 0, new_node(now, limit.at_width, 0))
    end
    append(cell, limit, cost)
    cell.used, cell.last_us = cell.used + cost, cell.clock_us
    cell.admitted, cell.gone_after_us = true, nil
end

-- A log of which nothing is known, used up at an instant.
local function used_up(limit, at_us, own_key)
    local cell = load(nil, nil, nil, limit, own_key)
    if now - at_us < limit.period_us then
        local now_us = now
        now, cell.clock_us = at_us, at_us
        charge(cell, limit, limit.count)
        now, cell.clock_us = now_us, now_us
    end
    return cell
end

local function force(cell, limit, cost)
    cost = math.min(cost, 2 * limit.count - cell.used)
    cell.gone_after_us = nil
    if cost > 0 then
        charge(cell, limit, cost)
    end
end

-- Tells its entry's instant: by how far it is past the log's incarnation, the entry is past the
-- charge.
local function receipt(cell, limit, cost, nonce)
    if cell.incarnation == 0 then
        cell.incarnation = nonce
    end
    return (cell.incarnation + cell.ahead_us) % 281474976710656
end

local function given_back(cell, units)
    cell.gone_after_us = nil
    cell.used = cell.used - units
    if cell.used == 0 then
        untouched(cell)
    else
        local _, _, _, at_us = seek(cell, cell.head, cell.place, 0, cell.used)
        cell.last_us = at_us
    end
    return units
end

local function give_back(cell, limit, incarnation, at_us, amount, slot, unused)
    local past_us = (incarnation - cell.incarnation) % 281474976710656
    if cell.incarnation == 0 or past_us > math.min(1000000, limit.period_us) or now < at_us then
        return
    end
    local entry_us = at_us + cell.shift_us + past_us
    local number, place, _, found_us = seek(cell, cell.head, cell.place, entry_us, 0)
    if found_us ~= entry_us then
        return
    end
    local node = node_at(cell, 0, number)
    local _, before = entry(node, place)
    local _, through = entry(node, place + 1)
    local units = math.min(unused, amount, through - before)
    if units > 0 then
        lower_entry(cell, number, place, units)
        return given_back(cell, units)
    end
end

-- The oldest go, as if they had expired.
local function lower_by(cell, limit, amount)
    local units = math.min(amount, cell.used)
    if units > 0 then
        local number, place, before = seek(cell, cell.head, cell.place, 0, units)
        lower_entry(cell, number, place, units - before)
        cell.head, cell.place = number, place
        return given_back(cell, units)
    end
end

local function expiry_us(cell, limit, at_us)
    local wait_us = at_us - cell.clock_us + limit.period_us + cell.ahead_us
    return math.min(wait_us, cell.gone_after_us or wait_us)
end

local function reply(cell, limit, cost, out, i)
    local over = cell.used + cost - limit.count
    out[i], out[i + 1], out[i + 2] = cell.used, 0, 0
    if over > 0 and over <= cell.used then
        local _, _, _, at_us = seek(cell, cell.head, cell.place, 0, over)
        out[i + 1] = expiry_us(cell, limit, at_us)
    end
    if cell.used > 0 then
        out[i + 2] = expiry_us(cell, limit, cell.last_us)
    end
    return i + 3
end

-- The nodes that hold expired entries alone, a few at most.
local function freed(cell)
    local fields = {}
    while cell.oldest < cell.head and #fields < FREED_MOST do
        fields[#fields + 1] = field_of(0, cell.oldest)
        cell.oldest = cell.oldest + 1
        local level, number = 1, cell.oldest / FANOUT
        while level <= TOP and number % 1 == 0 do
            fields[#fields + 1] = field_of(level, number - 1)
            level, number = level + 1, number / FANOUT
        end
    end
    return fields
end

-- The record's kind and body, and the us until it is untouched; nothing once it is. What else
-- changed is stored at once, with the same life as the record.
local function pack(cell, limit)
    if cell.used == 0 then
        redis.call('UNLINK', cell.own_key)
        return
    end
    if cell.fresh then
        redis.call('UNLINK', cell.own_key)
    end
    for field, node in pairs(cell.stored) do
        redis.call('HSET', cell.own_key, field, node.text)
    end
    if cell.admitted then
        local fields = freed(cell)
        if fields[1] then
            redis.call('HDEL', cell.own_key, unpack(fields))
        end
    end
    local until_us = cell.last_us - cell.clock_us + limit.period_us + cell.ahead_us
    local until_ms = until_us / 1000
    redis.call('PEXPIRE', cell.own_key, math.ceil(until_ms + math.max(500, until_ms / 20)))
    return LOG, struct.pack(BODY, limit.count, limit.period_us, cell.incarnation, cell.shift_us,
        cell.last_us, cell.used, cell.oldest, cell.tail, cell.head, cell.place), until_us
end

-- Us until a record is untouched by the numbers it was written under.
local function until_us(value, kind, at)
    local count, period_us, incarnation, shift_us, last_us = struct.unpack(BODY, value, at)
    return last_us - shift_us - now + period_us
end

return {
    width = 3, numbers = numbers, until_us = until_us, load = load, used_up = used_up, has_room = has_room,
    charge = charge, force = force, receipt = receipt, give_back = give_back, lower_by = lower_by,
    reply = reply, pack = pack,
}
