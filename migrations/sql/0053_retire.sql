-- Keeps what devices were: one that was deleted, moved to another node, became of another type or size, or came back after
-- it was gone still owes its time before, at the prices of where it was; its new time begins now. Deleting a node cascades
-- to its devices after the node's row is gone, so both tables are watched.
CREATE OR REPLACE FUNCTION headroom_retire() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    INSERT INTO retired_devices
    SELECT d.uuid, d.node_id, d.gpu_type, d.spec, n.spec, t.spec,
        d.billed_from, least(coalesce(d.billed_until, now()), now())
    FROM devices d JOIN nodes n ON n.id = d.node_id JOIN gpu_types t ON t.name = d.gpu_type
    WHERE d.billed_from < least(coalesce(d.billed_until, now()), now())
        AND CASE TG_TABLE_NAME WHEN 'nodes' THEN to_jsonb(OLD) ->> 'id' = d.node_id
            ELSE to_jsonb(OLD) ->> 'uuid' = d.uuid END
    ON CONFLICT DO NOTHING;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    IF NEW.billed_from = OLD.billed_from THEN
        NEW.billed_from = CASE WHEN NEW.billed_until IS NULL THEN now() ELSE coalesce(OLD.billed_until, now()) END;
    END IF;
    RETURN NEW;
END
$body$;

CREATE OR REPLACE TRIGGER devices_retire BEFORE DELETE ON devices FOR EACH ROW EXECUTE FUNCTION headroom_retire();

CREATE OR REPLACE TRIGGER nodes_retire BEFORE DELETE ON nodes FOR EACH ROW EXECUTE FUNCTION headroom_retire();

CREATE OR REPLACE TRIGGER devices_change BEFORE UPDATE ON devices FOR EACH ROW
    WHEN (OLD.billed_until IS NOT NULL AND NEW.billed_until IS NULL
        OR OLD.node_id <> NEW.node_id OR OLD.gpu_type <> NEW.gpu_type
        OR OLD.spec -> 'memory_mib' IS DISTINCT FROM NEW.spec -> 'memory_mib'
        OR OLD.spec #> '{mig,parent}' IS DISTINCT FROM NEW.spec #> '{mig,parent}')
    EXECUTE FUNCTION headroom_retire();

CREATE OR REPLACE VIEW billable_devices AS
    SELECT d.uuid, d.node_id, d.gpu_type, d.spec, n.spec AS node_spec, t.spec AS type_spec, d.billed_from,
        d.billed_until, true AS live
    FROM devices d JOIN nodes n ON n.id = d.node_id JOIN gpu_types t ON t.name = d.gpu_type
    UNION ALL
    SELECT uuid, node_id, gpu_type, spec, node_spec, type_spec, billed_from, billed_until, false FROM retired_devices;
