-- name: begin_sign_in
-- Keeps a sign-in by the hash of its secret, no longer than its token; forgets those that have been over for a day.
WITH forgotten AS (
    DELETE FROM sign_ins WHERE least(expires_at, ended_at) < now() - interval '1 day'
)
INSERT INTO sign_ins (id, token_id, secret_hash, browser, expires_at)
VALUES (
    :id, :token_id, :secret_hash, :browser,
    least(now() + make_interval(secs => :ttl_s), (SELECT expires_at FROM tokens WHERE id = :token_id))
)
RETURNING id, token_id, browser, created_at, expires_at

-- name: find_sign_in
-- The sign-in with this secret that goes on.
SELECT id, token_id, browser, created_at, expires_at FROM sign_ins
WHERE secret_hash = :secret_hash AND ended_at IS NULL AND expires_at > now()

-- name: sign_ins_of_token
-- What goes on with a token, the newest first.
SELECT id, token_id, browser, created_at, expires_at FROM sign_ins
WHERE token_id = :token_id AND ended_at IS NULL AND expires_at > now()
ORDER BY created_at DESC, id LIMIT 200

-- name: end_sign_in
-- Ends one of a token's sign-ins, and with it a token that was made for it alone, by an identity provider.
WITH over AS (
    UPDATE sign_ins SET ended_at = now()
    WHERE id = :id AND token_id = :token_id AND ended_at IS NULL AND expires_at > now()
    RETURNING id, token_id
), spent AS (
    UPDATE tokens t SET revoked_at = now() FROM over
    WHERE t.id = over.token_id AND t.created_by LIKE 'oidc:%' AND t.revoked_at IS NULL
)
SELECT id FROM over

-- name: keep_sign_in_link
-- Keeps a link that signs in once, and forgets those whose time is over.
WITH forgotten AS (
    DELETE FROM sign_in_links WHERE expires_at <= now()
)
INSERT INTO sign_in_links (secret_hash, token_id, expires_at)
VALUES (:secret_hash, :token_id, now() + make_interval(secs => :ttl_s))
RETURNING expires_at

-- name: use_sign_in_link
-- Takes a link: it is gone then. Answers for whom it was.
DELETE FROM sign_in_links WHERE secret_hash = :secret_hash AND expires_at > now() RETURNING token_id

-- name: keep_oidc_attempt
-- Keeps what a browser has to come back with, and forgets those whose time is over and, of too many, the oldest: anybody
-- may begin one.
WITH beyond AS (
    SELECT secret_hash FROM oidc_attempts ORDER BY expires_at DESC OFFSET CAST(:most AS integer) - 1
), over AS (
    SELECT secret_hash FROM oidc_attempts
    WHERE expires_at <= now() OR secret_hash IN (SELECT secret_hash FROM beyond) FOR UPDATE SKIP LOCKED
), forgotten AS (
    DELETE FROM oidc_attempts WHERE secret_hash IN (SELECT secret_hash FROM over)
)
INSERT INTO oidc_attempts (secret_hash, nonce, verifier, back, expires_at)
VALUES (:secret_hash, :nonce, :verifier, :back, now() + make_interval(secs => :ttl_s))

-- name: take_oidc_attempt
-- Takes an attempt: it is gone then.
DELETE FROM oidc_attempts WHERE secret_hash = :secret_hash AND expires_at > now() RETURNING nonce, verifier, back
