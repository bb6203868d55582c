/* Local search over what groups of devices take: so many of each group's columns, in whole numbers.
 *
 * Every row counts what it is short of its lower end, or over its upper one: at one price first, then at another, and
 * once for being so at all. An attempt anneals from the best so far, with what is short or over at prices that rise from
 * the relaxed optimum's, so that a device may empty before others have taken on what it served; then it descends at true
 * prices, by one exchange or by two of which the second mends what the first one breaks, until none gains.
 *
 * Equal input gives equal output on any machine: no threads, no clock. Work is counted in elementary steps.
 */
#include "chance.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MOVES 60000 /* of an attempt while it anneals */
#define TURN 256    /* moves between two looks at heat and prices */
#define PRICE_FROM 1.0
#define PRICE_TO 4.0 /* times the relaxed optimum's */
#define NOISE 0.2
#define DUST 1e-7
#define GAIN 1e-7

typedef struct {
    int64_t columns, groups, rows;
    const int64_t *group, *start, *row; /* of columns, in order of their groups */
    const double *usd, *value;
    const int64_t *devices;       /* by group, the columns of which begin at: */
    const int64_t *begin;         /* one more than there are groups */
    const double *lower, *upper;  /* by row, as all that follow */
    const double *first, *first_usd, *short_usd, *once_usd, *over_usd, *over_once_usd;
    const double *price;          /* of a unit that is short or over, by the relaxed optimum */
    const uint8_t *soft;          /* whether annealing counts that instead */
} Choices;

typedef struct {
    double hot, cold; /* $/h that a move may lose, at the beginning and at the end of an attempt at most */
    int64_t work, seed;
} Plan;

typedef struct {
    int64_t group, from, to; /* columns, -1: none */
    int64_t at, entries;
    double usd, gain; /* what it costs alone, and what of it is cheaper, before what it breaks */
    double worst;     /* that it breaks, at: */
    int64_t broken;   /* twice the row, and one where it is over; -1: nothing */
} Move;

typedef struct {
    const Choices *p;
    int64_t *count, *used, *on, *on_n; /* the last two: columns in use of each group, from `begin` on */
    double *held, *now, *price, *change, *with; /* by row; the last two: of the move that is looked at */
    uint8_t *touched;
    int64_t *rows;
    Move *move;
    int64_t moves, moves_room;
    int64_t *row;
    double *value;
    int64_t entries, entries_room;
    int64_t *mends_start, *mends; /* moves by what they mend: twice the row, and one where it is over */
    int64_t mends_room;
    double usd, best_usd;
    int soft, failed;
    uint64_t random;
    int64_t work, most;
} Search;

static void *room(Search *s, int64_t count, size_t size)
{
    void *made = calloc((size_t)(count > 0 ? count : 1), size);
    if (!made) s->failed = 1;
    return made;
}

static int grown(Search *s, void **place, int64_t *had, int64_t count, size_t size)
{
    if (count <= *had) return 1;
    int64_t more = count + count / 2 + 64;
    void *made = realloc(*place, (size_t)more * size);
    if (!made) return s->failed = 1, 0;
    *place = made, *had = more;
    return 1;
}

/* What a row costs with so much. */
static double cost(const Search *s, int64_t r, double held)
{
    const Choices *p = s->p;
    double lacks = p->lower[r] - held, over = held - p->upper[r], usd = 0;
    if (s->soft && p->soft[r]) return lacks > DUST ? lacks * s->price[r] : over > DUST ? over * s->price[r] : 0;
    if (lacks > DUST) {
        double first = lacks < p->first[r] ? lacks : p->first[r];
        usd = first * p->first_usd[r], lacks -= first;
        if (lacks > DUST) usd += lacks * p->short_usd[r] + p->once_usd[r];
    }
    if (over > DUST) usd += over * p->over_usd[r] + p->over_once_usd[r];
    return usd;
}

static void count_up(Search *s)
{
    const Choices *p = s->p;
    s->usd = 0;
    for (int64_t k = 0; k < p->columns; k++) s->usd += (double)s->count[k] * p->usd[k];
    for (int64_t r = 0; r < p->rows; r++) s->usd += s->now[r] = cost(s, r, s->held[r]);
}

static void begin_from(Search *s, const int64_t *count)
{
    const Choices *p = s->p;
    memset(s->used, 0, sizeof(int64_t) * (size_t)p->groups), memset(s->on_n, 0, sizeof(int64_t) * (size_t)p->groups);
    memset(s->held, 0, sizeof(double) * (size_t)p->rows);
    for (int64_t k = 0; k < p->columns; k++) {
        int64_t g = p->group[k];
        s->count[k] = count[k], s->used[g] += count[k];
        if (count[k]) s->on[p->begin[g] + s->on_n[g]++] = k;
        for (int64_t q = p->start[k]; count[k] && q < p->start[k + 1]; q++)
            s->held[p->row[q]] += (double)count[k] * p->value[q];
    }
    count_up(s);
}

/* Rows that change when one device carries `to` in place of `from`, and by how much, in `change`. */
static int64_t changed(Search *s, int64_t from, int64_t to)
{
    const Choices *p = s->p;
    int64_t n = 0;
    for (int side = 0; side < 2; side++) {
        int64_t k = side ? from : to;
        for (int64_t q = k < 0 ? 0 : p->start[k]; q < (k < 0 ? 0 : p->start[k + 1]); q++) {
            int64_t r = p->row[q];
            if (!s->touched[r]) s->touched[r] = 1, s->change[r] = 0, s->rows[n++] = r;
            s->change[r] += side ? -p->value[q] : p->value[q];
        }
    }
    for (int64_t i = 0; i < n; i++) s->touched[s->rows[i]] = 0;
    s->work += n + 4;
    return n;
}

static double dearer(const Search *s, int64_t from, int64_t to)
{
    return (to < 0 ? 0 : s->p->usd[to]) - (from < 0 ? 0 : s->p->usd[from]);
}

static void exchange(Search *s, int64_t group, int64_t from, int64_t to)
{
    int64_t *on = s->on + s->p->begin[group], *n = s->on_n + group;
    if (from < 0) s->used[group]++;
    else if (--s->count[from] == 0)
        for (int64_t i = 0; i < *n; i++)
            if (on[i] == from) on[i] = on[--*n];
    if (to < 0) s->used[group]--;
    else if (s->count[to]++ == 0) on[(*n)++] = to;
}

/* ---- annealing ---------------------------------------------------------------------------------------------------- */

/* One of the columns that devices of the group carry, or none where one is idle; each alike. */
static int64_t carried(Search *s, int64_t group)
{
    int64_t n = s->on_n[group], at = below(&s->random, n + (s->used[group] < s->p->devices[group]));
    return at < n ? s->on[s->p->begin[group] + at] : -1;
}

static void cool(Search *s, const Plan *plan)
{
    const Choices *p = s->p;
    double hot = plan->cold * pow(plan->hot / plan->cold, uniform(&s->random)), heat = hot;
    double *noise = s->with; /* idle meanwhile */
    for (int64_t r = 0; r < p->rows; r++) noise[r] = 1 - NOISE + 2 * NOISE * uniform(&s->random);
    s->soft = 1;
    for (int64_t turn = 0; turn < MOVES && s->work < s->most; turn++, s->work++) {
        if (turn % TURN == 0) {
            double part = (double)turn / MOVES, times = PRICE_FROM * pow(PRICE_TO / PRICE_FROM, part);
            heat = hot * pow(plan->cold / hot, part);
            for (int64_t r = 0; r < p->rows; r++) s->price[r] = p->price[r] * times * noise[r];
        }
        int64_t to = below(&s->random, p->columns + p->groups), group = to - p->columns;
        if (to < p->columns) group = p->group[to]; else to = -1;
        int64_t from = p->devices[group] ? carried(s, group) : to;
        if (from == to) continue;
        int64_t n = changed(s, from, to);
        double more = dearer(s, from, to);
        for (int64_t i = 0; i < n; i++) {
            int64_t r = s->rows[i];
            more += cost(s, r, s->held[r] + s->change[r]) - cost(s, r, s->held[r]);
        }
        if (more > 0 && uniform(&s->random) >= exp(-more / heat)) continue;
        exchange(s, group, from, to);
        for (int64_t i = 0; i < n; i++) s->held[s->rows[i]] += s->change[s->rows[i]];
    }
    s->soft = 0;
    count_up(s);
}

/* ---- descent ------------------------------------------------------------------------------------------------------ */

static void list(Search *s, int64_t group, int64_t from, int64_t to)
{
    int64_t n = changed(s, from, to);
    if (!grown(s, (void **)&s->move, &s->moves_room, s->moves + 1, sizeof(Move))) return;
    if (s->entries + n > s->entries_room) {
        int64_t had = s->entries_room;
        if (!grown(s, (void **)&s->row, &had, s->entries + n, sizeof(int64_t))) return;
        if (!grown(s, (void **)&s->value, &s->entries_room, s->entries + n, sizeof(double))) return;
    }
    Move m = {.group = group, .from = from, .to = to, .at = s->entries, .broken = -1, .worst = DUST};
    m.gain = m.usd = dearer(s, from, to);
    for (int64_t i = 0; i < n; i++) {
        int64_t r = s->rows[i];
        if (s->change[r] == 0) continue;
        double held = s->held[r] + s->change[r], more = cost(s, r, held) - s->now[r];
        m.usd += more;
        if (more < 0) m.gain += more;
        if (more > m.worst) m.worst = more, m.broken = 2 * r + (held > s->p->upper[r]);
        s->row[s->entries] = r, s->value[s->entries++] = s->change[r];
    }
    m.entries = s->entries - m.at;
    s->move[s->moves++] = m;
}

static void list_all(Search *s)
{
    const Choices *p = s->p;
    s->moves = s->entries = 0;
    for (int64_t g = 0; g < p->groups; g++) {
        for (int64_t i = s->used[g] < p->devices[g] ? -1 : 0; i < s->on_n[g]; i++) {
            int64_t from = i < 0 ? -1 : s->on[p->begin[g] + i];
            if (from >= 0) list(s, g, from, -1);
            for (int64_t to = p->begin[g]; to < p->begin[g + 1] && !s->failed; to++)
                if (to != from) list(s, g, from, to);
        }
    }
}

static void list_mends(Search *s)
{
    int64_t kinds = 2 * s->p->rows, *at = s->mends_start;
    if (!grown(s, (void **)&s->mends, &s->mends_room, s->entries, sizeof(int64_t))) return;
    memset(at, 0, sizeof(int64_t) * (size_t)(kinds + 2));
    for (int64_t q = 0; q < s->entries; q++) at[2 * s->row[q] + (s->value[q] < 0) + 2]++;
    for (int64_t i = 0; i < kinds; i++) at[i + 2] += at[i + 1];
    for (int64_t i = 0; i < s->moves; i++)
        for (int64_t q = s->move[i].at; q < s->move[i].at + s->move[i].entries; q++)
            s->mends[at[2 * s->row[q] + (s->value[q] < 0) + 1]++] = i;
    s->work += 2 * s->entries;
}

static void apply(Search *s, const Move *m)
{
    exchange(s, m->group, m->from, m->to);
    for (int64_t q = m->at; q < m->at + m->entries; q++) s->held[s->row[q]] += s->value[q];
}

/* Whether both can be done: not with the same device. */
static int both(const Search *s, const Move *one, const Move *other)
{
    if (one->group != other->group || one->from != other->from) return 1;
    if (one->from < 0) return s->used[one->group] + 2 <= s->p->devices[one->group];
    return s->count[one->from] >= 2;
}

static int descend(Search *s, int by_two)
{
    list_all(s);
    if (by_two && !s->failed) list_mends(s);
    if (s->failed) return 0;
    double best = -GAIN;
    int64_t first = -1, second = -1;
    for (int64_t i = 0; i < s->moves; i++)
        if (s->move[i].usd < best) best = s->move[i].usd, first = i;
    for (int64_t i = 0; by_two && i < s->moves && s->work < s->most; i++) {
        const Move *one = s->move + i;
        if (one->gain >= best || one->broken < 0) continue;
        for (int64_t q = one->at; q < one->at + one->entries; q++) {
            int64_t r = s->row[q];
            s->touched[r] = 1, s->change[r] = s->value[q], s->with[r] = cost(s, r, s->held[r] + s->value[q]);
        }
        for (int64_t at = s->mends_start[one->broken]; at < s->mends_start[one->broken + 1]; at++) {
            const Move *other = s->move + s->mends[at];
            if (other == one || !both(s, one, other)) continue;
            double usd = one->usd + other->usd;
            for (int64_t q = other->at; q < other->at + other->entries; q++) {
                int64_t r = s->row[q];
                if (!s->touched[r]) continue;
                double alone = cost(s, r, s->held[r] + s->value[q]) - s->now[r];
                usd += cost(s, r, s->held[r] + s->change[r] + s->value[q]) - s->with[r] - alone;
            }
            s->work += other->entries;
            if (usd < best) best = usd, first = i, second = s->mends[at];
        }
        for (int64_t q = one->at; q < one->at + one->entries; q++) s->touched[s->row[q]] = 0;
    }
    if (first < 0) return 0;
    apply(s, s->move + first);
    if (second >= 0) apply(s, s->move + second);
    count_up(s);
    return 1;
}

/* ---- all of it ---------------------------------------------------------------------------------------------------- */

/* Begins with the counts given and leaves the best ones there; `told`: what they cost, and the work. -1: no memory. */
int64_t anneal(const Choices *p, const Plan *plan, int64_t *count, double *told)
{
    Search search = {.p = p, .random = 0x9E3779B97F4A7C15ULL ^ (uint64_t)plan->seed, .most = plan->work}, *s = &search;
    int64_t rows = p->rows;
    s->count = room(s, p->columns, sizeof(int64_t)), s->used = room(s, p->groups, sizeof(int64_t));
    s->on = room(s, p->columns, sizeof(int64_t)), s->on_n = room(s, p->groups, sizeof(int64_t));
    s->held = room(s, rows, sizeof(double)), s->now = room(s, rows, sizeof(double));
    s->price = room(s, rows, sizeof(double)), s->change = room(s, rows, sizeof(double));
    s->with = room(s, rows, sizeof(double)), s->touched = room(s, rows, 1), s->rows = room(s, rows, sizeof(int64_t));
    s->mends_start = room(s, 2 * rows + 2, sizeof(int64_t));
    if (!s->failed) {
        begin_from(s, count);
        s->best_usd = s->usd;
        for (int attempt = 0; !s->failed; attempt++) {
            if (attempt) cool(s, plan);
            for (int two = 0; s->work < s->most && two < 2;) two = descend(s, two) ? 0 : two + 1;
            if (s->usd < s->best_usd - GAIN)
                s->best_usd = s->usd, memcpy(count, s->count, sizeof(int64_t) * (size_t)p->columns);
            if (s->work >= s->most) break;
            begin_from(s, count);
        }
        told[0] = s->best_usd, told[1] = (double)s->work;
    }
    free(s->count), free(s->used), free(s->on), free(s->on_n), free(s->held), free(s->now), free(s->price), free(s->change), free(s->with);
    free(s->touched), free(s->rows), free(s->mends_start), free(s->move), free(s->row), free(s->value), free(s->mends);
    return s->failed ? -1 : 0;
}
