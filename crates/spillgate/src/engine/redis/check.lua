-- Decides: loads every tier, steps every decision in order, stores what changed.
--
-- Each decision is all or none by itself: every enforced tier has room and all are charged, or
-- nothing is. The algorithms are joined to this file, one function each, run when first needed.
--
-- KEYS:    the value of each rule and subject, the logs and the slots; all of one hash tag; and last the
--          guard, where ARGV[2] is given
-- ARGV[1]: what sole.lua says; or msgpack, one flat array: the program
--   now_us (0: ask TIME), nonce (below 2^48, another for each call: names new incarnations and slots),
--   where the decisions begin; limits, each: algorithm 1-5, name 0-14 or 15, name (8 bytes, or 0),
--           and its algorithm's Numbers
--   decisions, up to the end; for each: operation, then
--     CHARGE RESERVE PEEK: how many tiers, for each of them: key, own key, limit, cost;
--                          how many shadow rules, for each: how many tiers, and those
--     FORCE:               key, own key, limit, cost
--     GIVE_BACK:           key, own key, limit, incarnation, at_us, amount, slot, unused
--     LOWER:               key, own key, limit, amount
--     OPEN:                the record's key, how long it can be settled (us), what it is for (16 bytes),
--                          what the caller keeps of the tiers, and then as RESERVE
--     CLOSE:               the record's key, how (0 ends, 1 undoes, 2 renews, 3 looks whether it is open and
--                          all slots are held), the mark of that (8 bytes),
--                          for how long (us), how many tiers, for each: key, own key, limit, what it is
--                          charged in the end (2^41: as it was)
--     CROWD:               how many decisions, alike and one after the other, and then as CHARGE; no slots
--   Keys are given by their index, limits by where they begin; only a log and slots have a key of
--   their own, else 0.
-- ARGV[2]: what the caller takes the guard to be
-- ARGV[3]: where a tier that is missing counts as used up when the shard lost what it held: when, in us
-- Returns: integers: now_us, and for each decision, each tier: fits (1, 0, or -1: the state is not
--   ours to read, nothing done), its algorithm's Reply, and for RESERVE and slots the incarnation
--   (0 if nothing was charged), then for a bucket what had come back of it before; for GIVE_BACK and LOWER the whole units that came back, then the
--   tier; for OPEN what became of the record (0 new, 1 there before, 2 there for something else, 3 refused,
--   4 expired, 5 cancelled, 6 released, 7 settled), then as RESERVE; for CLOSE only 0 done, 1 repeated, 2 expired, 3 unknown, 4 ended otherwise, 5 about
--   other tiers; for CROWD, for the enforced tiers and for those of each shadow rule: how many decisions
--   charged them, what each tier tells the first decision, and what it tells those that came too late. A
--   slot is named by that incarnation and by the place of its tier's `fits` in the answer, counted from 1.
--   Or now_us, -2: outside a calendar that the program carries, nothing executed. Or now_us, -3: the guard
--   is another, nothing executed.

local program
-- @include sole

local CHARGE, RESERVE, PEEK, FORCE, GIVE_BACK, LOWER, OPEN, CROWD = 0, 1, 2, 3, 4, 5, 6, 8
-- The sizes of record bodies, and whose they are, by kind.
local SIZES = '@sizes@'
local OWNERS = '@owners@'
local NAMED = 15
local LOG, SLOTS = 3, 5
-- More than the words of a call, so that key * MANY + limit names a tier.
local MANY = 65536

-- Looked up once: these are used for every tier.
local byte, floor, ceil, max, min = string.byte, math.floor, math.ceil, math.max, math.min

program = program or cmsgpack.unpack(ARGV[1])
local now = program[1]
if now == 0 then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
end
local nonce = program[2]
local values = redis.call('MGET', unpack(KEYS))
if ARGV[2] and values[#KEYS] ~= ARGV[2] then
    return { now, -3 }
end
-- A clock that stepped back counts the loss from now on.
local lost_us = min(tonumber(ARGV[3] or 0), now)
-- What the call changed without a cell: the us until a value is irrelevant, by key; and the keys.
local fresh, changes, changed = {}, {}, 0
local out, o = { now }, 2

-- Between the time until irrelevant and that and max(1 s, 10 %).
local function life_ms(longest_us)
    local until_ms = longest_us / 1000
    return ceil(until_ms + max(500, until_ms / 20))
end

-- Kept so long, or no longer where nothing is left: in steps, for a number takes the server longer to write
-- out than to be found among those that this call has used.
local lives = {}
-- What ends before this takes smaller steps, unless callers' clocks decide, which may be that far apart.
local soon_us = program[1] == 0 and 1000000 or 0
-- The step for times from one on and below another.
local least_us, below_us, step_us = 0, 0, 0
local function keep(key, longest_us)
    if not values[key] then
        redis.call('DEL', KEYS[key])
        return
    end
    if longest_us < least_us or longest_us >= below_us then
        least_us, below_us, step_us = 0, soon_us, 20000
        if longest_us >= below_us then
            least_us, below_us, step_us = soon_us, 16000001, 500000
        end
        if longest_us >= below_us then
            local _, bits = math.frexp(longest_us)
            least_us, below_us, step_us = max(below_us, math.ldexp(1, bits - 1)), math.ldexp(1, bits), math.ldexp(1, bits - 6)
        end
    end
    local life_us = longest_us + step_us / 2
    life_us = life_us - life_us % step_us + step_us
    local text = lives[life_us]
    if not text then
        text = string.format('%.0f', ceil(life_us / 1000))
        lives[life_us] = text
    end
    redis.call('SET', KEYS[key], values[key], 'PX', text)
end

-- @include token_bucket/lone

if at + 6 == size and program[program[at + 4]] == LOG then
    -- @include sliding_log/lone
    at = lone(at) and size + 1 or at
end
if at > size then
    for i = 1, changed do
        local key = changes[i]
        keep(key, fresh[key])
    end
    return out
end

-- floor(a * b / c) and the rest, within the integers that a double holds; c below 2^51.
local function mul_div(a, b, c)
    local product = a * b
    if product < 9007199254740992 then
        local quotient = floor(product / c)
        return quotient, product - quotient * c
    end
    local b_quotient = floor(b / c)
    local b_rest = b - b_quotient * c
    local quotient, rest = 0, 0
    local bits, length = math.frexp(a)
    for _ = 1, length do
        bits, quotient, rest = bits * 2, quotient * 2, rest * 2
        if bits >= 1 then
            bits, quotient, rest = bits - 1, quotient + b_quotient, rest + b_rest
        end
        while rest >= c do
            quotient, rest = quotient + 1, rest - c
        end
    end
    return quotient, rest
end

local algorithms = { function()
    -- @include token_bucket
end, function()
    -- @include fixed_window
end, function()
    -- @include sliding_log
end, function()
    -- @include sliding_window
end, function()
    -- @include concurrency
end }

local modules = {}
local function module(algorithm)
    local found = modules[algorithm]
    if not found then
        found = algorithms[algorithm]()
        modules[algorithm] = found
    end
    return found
end

local limits = {}
local l = 4
while l < program[3] do
    local algorithm = program[l]
    local owner = module(algorithm)
    local limit, after = owner.numbers(program, l + 3)
    if not limit then
        return { now, -2 }
    end
    limit.algorithm, limit.module = algorithm, owner
    limit.name, limit.long_name = program[l + 1], program[l + 2]
    limits[l] = limit
    l = after
end

local cells = {}
local dirty = {}
-- The limit of each key that was loaded last, the one before it by key * MANY + limit, and where the
-- record that was found last ends.
local newest, before, ends = {}, {}, {}

-- A limit's record in a value, from a place on: its kind, where its body is, where the next one is;
-- false where the value is not ours to read.
local function find(value, limit, place)
    local size = #value
    while place <= size do
        local head = byte(value, place)
        local kind = head % 16
        local name = (head - kind) / 16
        local body = place + 1 + (name == NAMED and 8 or 0)
        local length = byte(SIZES, kind + 1)
        if not length or body + length - 1 > size then
            return false
        end
        if name == limit.name and byte(OWNERS, kind + 1) == limit.algorithm
            and (name < NAMED or string.sub(value, place + 1, place + 8) == limit.long_name) then
            return kind, body, body + length
        end
        place = body + length
    end
end

-- The loaded tier of a key and a limit; false where its state is not ours to read.
local function cell_of(key, own_key, l)
    local cell = cells[key * MANY + l]
    if cell == nil then
        local limit, value = limits[l], values[key]
        local kind, body
        if value then
            -- Records lie in the order in which tiers are asked for, as a rule.
            local place, after = ends[key] or 1, nil
            kind, body, after = find(value, limit, place)
            if kind == nil and place > 1 then
                kind, body, after = find(value, limit, 1)
            end
            ends[key] = after or place
        end
        if kind == nil and lost_us > 0 then
            cell = limit.module.used_up(limit, lost_us, KEYS[own_key])
        else
            cell = kind ~= false and limit.module.load(value, kind, body, limit, KEYS[own_key]) or false
        end
        if cell then
            cell.body = body or false
        end
        cells[key * MANY + l] = cell
        before[key * MANY + l], newest[key] = newest[key], l
    end
    return cell
end

local function answer(cell, limit, cost, fits)
    if cell then
        out[o] = fits and 1 or 0
        o = limit.module.reply(cell, limit, cost, out, o + 1)
        return
    end
    out[o] = -1
    for i = o + 1, o + limit.module.width do
        out[i] = 0
    end
    o = o + 1 + limit.module.width
end

-- What each tier of a reservation was charged, while its record is being made.
local noted = false

-- One group of tiers from `first` on: charged if all have room and it may.
local function step(first, count, operation, may_charge)
    local last = first + 4 * count - 1
    local fits, whole = true, true
    for p = first, last, 4 do
        local l, cost = program[p + 2], program[p + 3]
        local cell, limit = cell_of(program[p], program[p + 1], l), limits[l]
        if cell then
            cell.fits = limit.module.has_room(cell, limit, cost > 0 and cost or 1)
            fits = fits and cell.fits
        else
            fits, whole = false, false
        end
    end
    for p = first, last, 4 do
        local key, l, cost = program[p], program[p + 2], program[p + 3]
        local cell, limit = cells[key * MANY + l], limits[l]
        local receipts = operation == RESERVE or limit.algorithm == SLOTS
        -- A slot is named by its place in the answer; a bucket's receipt carries what came back before.
        local incarnation, mark, marks = 0, o, receipts and limit.module.mark
        if may_charge and cost > 0 then
            if fits then
                limit.module.charge(cell, limit, cost)
                if receipts then
                    incarnation = limit.module.receipt(cell, limit, cost, nonce, mark)
                end
                cell.changed, dirty[key] = true, true
            elseif whole and cell.rebased then
                cell.changed, dirty[key] = true, true
            end
        end
        answer(cell, limit, cost > 0 and cost or 1, cell and cell.fits)
        if receipts then
            out[o] = incarnation
            o = o + 1
        end
        if marks then
            mark = incarnation > 0 and marks(cell) or 0
            out[o] = mark
            o = o + 1
        end
        if noted then
            noted[#noted + 1] = struct.pack('>I6I6I5', incarnation, mark, cost)
        end
    end
    return fits
end

-- The tiers of a decision, counted at program[p]; where the next operation begins, and whether all fit.
local function decide(p, operation, may_charge)
    local count = program[p]
    local fits = step(p + 1, count, operation, may_charge)
    p = p + 1 + 4 * count
    local shadows = program[p]
    p = p + 1
    for _ = 1, shadows do
        count = program[p]
        step(p + 1, count, operation, fits and may_charge)
        p = p + 1 + 4 * count
    end
    return p, fits
end

-- FORCE, GIVE_BACK or LOWER of one tier; where the next operation begins.
local function change(operation, p)
    local key, l = program[p + 1], program[p + 3]
    local cell, limit = cell_of(key, program[p + 2], l), limits[l]
    local returned
    if cell and operation == FORCE then
        limit.module.force(cell, limit, program[p + 4], o)
    elseif cell and operation == GIVE_BACK then
        returned = limit.module.give_back(cell, limit, program[p + 4], program[p + 5],
            program[p + 6], program[p + 7], program[p + 8])
    elseif cell then
        returned = limit.module.lower_by(cell, limit, program[p + 4])
    end
    if cell and (returned or operation == FORCE) then
        cell.changed, dirty[key] = true, true
    end
    if operation ~= FORCE then
        out[o] = returned or 0
        o = o + 1
    end
    answer(cell, limit, 1, true)
    return p + (operation == GIVE_BACK and 9 or 5)
end

local function new_records()
    -- @include records
end

local function new_crowd()
    -- @include crowd
end

local records, crowd
while at <= size do
    local operation = program[at]
    if operation == CROWD then
        crowd = crowd or new_crowd()
        at = crowd(at + 1)
    elseif operation >= OPEN then
        records = records or new_records()
        at = (operation == OPEN and records.open or records.close)(at)
    elseif operation > PEEK then
        at = change(operation, at)
    else
        at = decide(at + 1, operation, operation ~= PEEK)
    end
end

-- The records of a value that this call did not change, and the us until the last of them ends.
local function others(value, key)
    local kept, longest_us = '', 0
    local changed_at = {}
    local l = newest[key]
    while l do
        local cell = cells[key * MANY + l]
        if cell and cell.changed and cell.body then
            changed_at[cell.body] = true
        end
        l = before[key * MANY + l]
    end
    local place, length = 1, #value
    while place <= length do
        local head = byte(value, place)
        local kind = head % 16
        local body = place + 1 + ((head - kind) / 16 == NAMED and 8 or 0)
        local after = body + (byte(SIZES, kind + 1) or length)
        if after > length + 1 then
            -- What follows is not ours to read; it stays, and harms nobody who does not ask for it.
            return kept .. string.sub(value, place), longest_us
        end
        if not changed_at[body] then
            local until_us = module(byte(OWNERS, kind + 1)).until_us(value, kind, body)
            if until_us > 0 then
                kept = kept .. string.sub(value, place, after - 1)
                longest_us = max(longest_us, until_us)
            end
        end
        place = after
    end
    return kept, longest_us
end

-- A value with its changed records packed anew.
local function store(key)
    local old, value, longest_us, replaced = values[key], '', 0, 0
    local l = newest[key]
    while l do
        local cell, limit = cells[key * MANY + l], limits[l]
        if cell and cell.changed then
            local head_length = limit.name == NAMED and 9 or 1
            if cell.body then
                local kind = byte(old, cell.body - head_length) % 16
                replaced = replaced + head_length + byte(SIZES, kind + 1)
            end
            local kind, body, until_us = limit.module.pack(cell, limit)
            if kind then
                local head = string.char(limit.name * 16 + kind)
                if limit.name == NAMED then
                    head = head .. limit.long_name
                end
                value = head .. body .. value
                longest_us = until_us > longest_us and until_us or longest_us
            end
        end
        l = before[key * MANY + l]
    end
    -- Mostly all that the value held has changed.
    if old and replaced < #old then
        local kept, until_us = others(old, key)
        value, longest_us = kept .. value, max(longest_us, until_us)
    end
    if value == '' then
        redis.call('DEL', KEYS[key])
        return
    end
    values[key] = value
    keep(key, longest_us)
end

for key in pairs(dirty) do
    store(key)
end
for i = 1, changed do
    local key = changes[i]
    if not dirty[key] then
        keep(key, fresh[key])
    end
end

return out
