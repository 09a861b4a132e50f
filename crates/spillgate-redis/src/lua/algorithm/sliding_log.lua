-- Sliding log: in every half-open interval of one period, admitted <= count, exactly.
--
-- Mirrors sliding_log.rs and sliding_log/entries.rs. Entries fill chunks. A full chunk closes and becomes one entry of
-- a node above it, and so on. Every search and every change therefore reads and writes a few nodes of half a kilobyte.
--
-- Parameters: count, period_us, at_width (bytes of an entry's instant)
-- Reply:   used, retry_after_us, reset_after_us
-- Body:    kind 5: count, period_us, incarnation, shift_us, last_us, used, oldest, tail, head, place
-- Own key: a hash of nodes; field: level, number; value: base_us, the format of an entry, entries:
--          the instant after base_us, and the units of the node through this entry (of no bytes
--          if each has one unit, so that they equal the entry's place)

local LOG = 5
-- @include sliding_log/nodes

-- How many nodes one node above them covers, and the topmost level.
local FANOUT, TOP = 32, 3
-- Expired chunks freed by one admission: more than one, so that their number falls; few, so that it stays cheap.
local FREED_MOST = 4

local function params(program, i)
    return { count = program[i], period_us = program[i + 1], at_width = program[i + 2] }, i + 3
end

local function untouched(self)
    self.used, self.clock_us, self.ahead_us, self.shift_us = 0, now, 0, 0
    self.incarnation, self.gone_after_us = 0, nil
    return self
end

-- Returns the bytes for the units of entries, given all units and the number of entries.
local function width_of(units, size)
    if units == size then
        return 0
    end
    return (units < 256 and 1) or (units < 65536 and 2) or (units < 16777216 and 3) or 4
end

local function new_node(base_us, at_width, units_width)
    local format = string.char(62, 73, 48 + at_width, 73, 48 + units_width)
    return {
        text = pack_record('>I7c5', base_us, format), size = 0, base_us = base_us, format = format,
        at_width = at_width, units_width = units_width, width = at_width + units_width,
    }
end

local function field_of(level, number)
    return pack_record(FIELD, level, number)
end

local function node_at(self, level, number)
    local field = field_of(level, number)
    local node = self.nodes[field]
    if not node then
        local text = redis.call('HGET', self.own_key, field)
        node = text and node_of(text) or new_node(0, 7, 6)
        self.nodes[field] = node
    end
    return node
end

-- Returns the number of a level's open node. Above chunks it may have no entry yet.
local function open_number(self, level)
    return floor(self.tail / FANOUT ^ level)
end

-- Finds a place at or after the given one, before the first entry that satisfies both conditions: its instant
-- is at or after from_us, and through it at least `unit` units follow the given place. Returns that place,
-- the units in between, and the entry's instant; the end of the log if there is none. A place is a chunk and
-- the number of entries before it.
local function seek(self, number, place, from_us, unit)
    -- Searches a node, then descends into the entry found, or ascends if the node has none.
    local level, passed = 0, 0
    while true do
        local node = node_at(self, level, number)
        local _, before = entry(node, place)
        local found, beyond, step = place, node.size + 1, 1
        local found_through, at_us = before, nil
        while beyond - found > 1 do
            -- Gallops from the left, since the entry is usually near, then bisects.
            local middle = found + step
            if middle >= beyond then
                middle = floor((found + beyond) / 2)
            end
            local middle_us, through = entry(node, middle)
            if middle_us >= from_us and passed + through - before >= unit then
                beyond, at_us = middle, middle_us
            else
                found, found_through, step = middle, through, step * 2
            end
        end
        passed = passed + found_through - before
        if level == 0 and (found < node.size or number == self.tail) then
            return number, found, passed, at_us
        elseif found < node.size then
            level, number, place = level - 1, number * FANOUT + found, 0
        elseif number == open_number(self, level) then
            level, number, place = level - 1, open_number(self, level - 1), 0
        elseif level == TOP then
            number, place = number + 1, 0
        else
            level, number, place = level + 1, floor(number / FANOUT), number % FANOUT + 1
        end
        -- Closed nodes may have become empty, although no entry is. Asking for one more unit steps over them.
        unit = max(unit, passed + 1)
    end
end

local function load(value, kind, at, limit, own_key)
    local self = untouched({ own_key = own_key, nodes = {}, stored = {} })
    if not at then
        return self
    end
    local count, period_us, incarnation, shift_us, last_us, used, oldest, tail, head, place =
        unpack_record(BODY, value, at)
    local clock_us, ahead_us = now + shift_us, 0
    if clock_us - last_us >= min(period_us, limit.period_us) then
        return self
    end
    -- The clock stepped back. A small step is tolerated: entries continue at last_us. A larger one shifts the log.
    if clock_us < last_us then
        ahead_us = last_us - clock_us
        if ahead_us > min(1000000, limit.period_us) then
            self.rebased, shift_us, ahead_us = true, shift_us + ahead_us, 0
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
            -- A chunk was evicted with its entries: the log is unknown, and begins empty.
            self.rebased = nil
            return self
        end
        self.nodes[field] = node_of(texts[i])
    end
    self.oldest, self.tail, self.last_us = oldest, tail, last_us
    local expired
    self.head, self.place, expired =
        seek(self, head, place, clock_us + 1 - limit.period_us, 0)
    self.used, self.clock_us, self.ahead_us, self.shift_us = used - expired, clock_us, ahead_us, shift_us
    if not self.rebased and period_us ~= limit.period_us then
        self.gone_after_us = last_us - clock_us + period_us + ahead_us
    elseif not self.rebased and count == limit.count then
        self.incarnation = incarnation
    end
    return self
end

-- Returns how many more units fit; negative if force used more than the limit.
local function room(self, limit)
    return limit.count - self.used
end

local function store(self, level, number, node)
    local field = field_of(level, number)
    self.nodes[field], self.stored[field] = node, node
end

local function push(node, at_us, through)
    node.text = node.text .. pack_record(node.format, at_us - node.base_us, through)
    node.size = node.size + 1
end

-- Returns a node from its `first` entry on, with room for units of the given width.
local function rewritten(node, first, units_width)
    local _, dropped = entry(node, first - 1)
    local base_us = node.size == 0 and node.base_us or entry(node, first)
    local new = new_node(base_us, node.at_width, units_width)
    local texts = { new.text }
    for place = first, node.size do
        local at_us, through = entry(node, place)
        texts[#texts + 1] = pack_record(new.format, at_us - new.base_us, through - dropped)
    end
    new.text, new.size = table.concat(texts), node.size - first + 1
    return new
end

-- Closes the open chunk and opens the next. A node above that becomes full closes as well.
local function close(self, limit)
    local level, number = 0, self.tail
    local node = node_at(self, 0, number)
    local _, units = entry(node, node.size)
    local units_width = width_of(units, node.size)
    repeat
        local at_us, through = entry(node, node.size)
        local last = number % FANOUT == FANOUT - 1
        level, number = level + 1, floor(number / FANOUT)
        node = node_at(self, level, number)
        local _, before = entry(node, node.size)
        push(node, at_us, before + through)
        store(self, level, number, node)
    until not last or level == TOP
    self.tail = self.tail + 1
    node = new_node(self.clock_us, limit.at_width, units_width)
    store(self, 0, self.tail, node)
    return node
end

-- Undoes a close, if all entries after it are gone.
local function reopen(self)
    self.tail = self.tail - 1
    local level, number = 0, self.tail
    repeat
        local last = number % FANOUT == FANOUT - 1
        level, number = level + 1, floor(number / FANOUT)
        local node = node_at(self, level, number)
        node.text, node.size = string.sub(node.text, 1, -1 - node.width), node.size - 1
        store(self, level, number, node)
    until not last or level == TOP
end

local function append(self, limit, units)
    local node = node_at(self, 0, self.tail)
    local last_us, through = entry(node, node.size)
    -- Charges of one instant share an entry: it is replaced by one with more units.
    if node.size > 0 and last_us == self.clock_us then
        node.text, node.size = string.sub(node.text, 1, -1 - node.width), node.size - 1
    else
        local worn, full
        -- @inline is_worn(self.place, node.size) -> worn
        if worn and self.head == self.tail then
            local _, expired = entry(node, self.place)
            node = rewritten(node, self.place + 1, node.units_width)
            self.place, through = 0, through - expired
        end
        -- @inline is_full(node, self.clock_us) -> full
        if node.size == 0 then
            node = new_node(self.clock_us, limit.at_width, node.units_width)
        elseif full then
            store(self, 0, self.tail, node)
            node, through = close(self, limit), 0
        end
    end
    through = through + units
    local units_width = width_of(through, node.size + 1)
    if units_width > node.units_width then
        node = rewritten(node, 1, units_width)
    end
    push(node, self.clock_us, through)
    store(self, 0, self.tail, node)
end

-- Returns a node's text with `units` less from the entry after a place on. An entry without units is dropped,
-- unless it stands for a closed node.
local function lowered(node, place, units, level)
    local size = HEAD_SIZE + place * node.width
    if node.units_width == 0 then
        return string.sub(node.text, 1, size) .. string.sub(node.text, size + node.width + 1)
    end
    local _, before = entry(node, place)
    local texts = { string.sub(node.text, 1, size) }
    for at = size + 1, #node.text, node.width do
        local at_us, through = unpack_record(node.format, node.text, at)
        through = through - units
        if level > 0 or through > before then
            texts[#texts + 1] = pack_record(node.format, at_us, through)
        end
    end
    return table.concat(texts)
end

-- Takes units from the entry after a place, which has at least as many. An entry without units is dropped.
local function lower_entry(self, number, place, units)
    local level = 0
    while true do
        local node = node_at(self, level, number)
        node.text = lowered(node, place, units, level)
        node.size = (#node.text - HEAD_SIZE) / node.width
        store(self, level, number, node)
        if level == TOP or number == open_number(self, level) then
            break
        end
        level, number, place = level + 1, floor(number / FANOUT), number % FANOUT
    end
    for _ = 1, min(FREED_MOST, self.tail - self.oldest) do
        if node_at(self, 0, self.tail).size == 0 then
            reopen(self)
        end
    end
end

local function charge(self, limit, cost)
    if self.used == 0 then
        self.oldest, self.tail, self.head, self.place = 0, 0, 0, 0
        self.nodes, self.stored, self.fresh = {}, {}, true
        store(self, 0, 0, new_node(now, limit.at_width, 0))
    end
    append(self, limit, cost)
    self.used, self.last_us = self.used + cost, self.clock_us
    self.admitted, self.gone_after_us = true, nil
end

-- Returns a log after a loss of data: used up at the instant of the loss.
local function used_up(limit, at_us, own_key)
    local self = load(nil, nil, nil, limit, own_key)
    if now - at_us < limit.period_us then
        -- The entry must carry the instant of the loss, so `now` is set back while it is charged.
        local now_us = now
        now, self.clock_us = at_us, at_us
        charge(self, limit, limit.count)
        now, self.clock_us = now_us, now_us
    end
    return self
end

local function force(self, limit, cost)
    cost = min(cost, 2 * limit.count - self.used)
    self.gone_after_us = nil
    if cost > 0 then
        charge(self, limit, cost)
    end
end

-- Returns the incarnation, raised by as much as the entry's instant is after the charge's. With it refund
-- finds the entry.
local function receipt(self, limit, cost, nonce)
    if self.incarnation == 0 then
        self.incarnation = nonce
    end
    return (self.incarnation + self.ahead_us) % 281474976710656
end

local function refunded(self, units)
    self.gone_after_us = nil
    self.used = self.used - units
    if self.used == 0 then
        untouched(self)
    else
        local _, _, _, at_us = seek(self, self.head, self.place, 0, self.used)
        self.last_us = at_us
    end
    return units
end

local function refund(self, limit, incarnation, at_us, amount, slot, unused)
    local past_us = (incarnation - self.incarnation) % 281474976710656
    if self.incarnation == 0 or past_us > min(1000000, limit.period_us) or now < at_us then
        return
    end
    local entry_us = at_us + self.shift_us + past_us
    local number, place, _, found_us = seek(self, self.head, self.place, entry_us, 0)
    if found_us ~= entry_us then
        return
    end
    local node = node_at(self, 0, number)
    local _, before = entry(node, place)
    local _, through = entry(node, place + 1)
    local units = min(unused, amount, through - before)
    if units > 0 then
        lower_entry(self, number, place, units)
        return refunded(self, units)
    end
end

-- Lowers the use by dropping the oldest entries, as if they had expired.
local function lower_by(self, limit, amount)
    local units = min(amount, self.used)
    if units > 0 then
        local number, place, before = seek(self, self.head, self.place, 0, units)
        lower_entry(self, number, place, units - before)
        self.head, self.place = number, place
        return refunded(self, units)
    end
end

local function expiry_us(self, limit, at_us)
    local wait_us = at_us - self.clock_us + limit.period_us + self.ahead_us
    return min(wait_us, self.gone_after_us or wait_us)
end

local function reply(self, limit, cost, out, i)
    local over = self.used + cost - limit.count
    out[i], out[i + 1], out[i + 2] = self.used, 0, 0
    if over > 0 and over <= self.used then
        local _, _, _, at_us = seek(self, self.head, self.place, 0, over)
        out[i + 1] = expiry_us(self, limit, at_us)
    end
    if self.used > 0 then
        out[i + 2] = expiry_us(self, limit, self.last_us)
    end
    return i + 3
end

-- Returns the fields of nodes that hold expired entries only, a few at most.
local function freed(self)
    local fields = {}
    while self.oldest < self.head and #fields < FREED_MOST do
        fields[#fields + 1] = field_of(0, self.oldest)
        self.oldest = self.oldest + 1
        local level, number = 1, self.oldest / FANOUT
        while level <= TOP and number % 1 == 0 do
            fields[#fields + 1] = field_of(level, number - 1)
            level, number = level + 1, number / FANOUT
        end
    end
    return fields
end

-- Returns the record's kind and body, and the us until it is irrelevant; nothing once it is. Writes the
-- changed nodes at once, with the same life as the record.
local function pack(self, limit)
    if self.used == 0 then
        redis.call('UNLINK', self.own_key)
        return
    end
    if self.fresh then
        redis.call('UNLINK', self.own_key)
    end
    for field, node in pairs(self.stored) do
        redis.call('HSET', self.own_key, field, node.text)
    end
    if self.admitted then
        local fields = freed(self)
        if fields[1] then
            redis.call('HDEL', self.own_key, unpack(fields))
        end
    end
    local until_us = self.last_us - self.clock_us + limit.period_us + self.ahead_us
    keep(self.own_key, nil, until_us)
    return LOG, pack_record(BODY, limit.count, limit.period_us, self.incarnation, self.shift_us,
        self.last_us, self.used, self.oldest, self.tail, self.head, self.place), until_us
end

-- Returns the us until a record is irrelevant under the parameters that it was written under.
local function until_us(value, kind, at)
    local _, period_us, _, shift_us, last_us = unpack_record(BODY, value, at)
    return last_us - shift_us - now + period_us
end

return {
    width = 3, params = params, until_us = until_us, load = load, used_up = used_up, room = room,
    charge = charge, force = force, receipt = receipt, refund = refund, lower_by = lower_by,
    reply = reply, pack = pack,
}
