/** What is known about a workflow of code: its description and what it takes. */
import type { Schemas } from "../api/client";
import { shortVersion } from "../format/ids";
import { Copy } from "../parts/Copy";
import { brief, Payload } from "../parts/Payload";
import { Time } from "../parts/Time";
import type { JsonSchema, Workflow } from "./data";
import { fieldsOf } from "./inputFields";

export function CodeDefinition({ workflow, version }: { workflow: Workflow; version: Schemas["WorkflowDefinition"] }) {
  const command = `perdure run ${workflow.name}`;
  return (
    <section className="pane scroll overview" role="tabpanel" id="panel-definition" aria-label="Definition">
      <section className="card code-def" aria-label="Code">
        <header>
          <h2 className="grow">Code</h2>
        </header>
        <div className="card-body">
          {workflow.description && <p>{workflow.description}</p>}
          <p className="muted">
            This workflow is Python that your workers import. They register it when they connect; its steps are known
            once it runs, so a run has a graph and a definition has none.
          </p>
          <dl className="kv">
            <dt>Version</dt>
            <dd className="mono">
              {shortVersion(version.version)} <Copy text={version.version} label="Copy version" />
            </dd>
            <dt>Registered</dt>
            <dd>
              <Time at={version.registered_at} />
            </dd>
            <dt>Start</dt>
            <dd className="mono">
              {command} <Copy text={command} label="Copy command" />
            </dd>
          </dl>
        </div>
      </section>
      <section className="card" aria-label="Input">
        <header>
          <h2 className="grow">Input</h2>
        </header>
        <InputSchema schema={workflow.input_schema ?? null} />
      </section>
    </section>
  );
}

function InputSchema({ schema }: { schema: JsonSchema | null }) {
  if (!schema)
    return (
      <p className="quiet muted">
        Not known: no connected worker has reported the signature. Annotate the parameters of the function to see them
        here and to get a form for starting runs.
      </p>
    );
  const fields = fieldsOf(schema);
  return (
    <>
      {fields.length > 0 && (
        <div className="scroll">
          <table className="grid">
            <thead>
              <tr>
                <th>Name</th>
                <th>Type</th>
                <th>Default</th>
                <th>Description</th>
              </tr>
            </thead>
            <tbody>
              {fields.map((field) => (
                <tr key={field.name}>
                  <td className="mono">{field.name}</td>
                  <td className="mono muted">{field.type}</td>
                  <td>
                    {field.required ? "required" : <span className="mono">{brief(field.default ?? null, 60)}</span>}
                  </td>
                  <td className="muted">{field.description || "–"}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {fields.length === 0 && <p className="quiet muted">It takes no named fields.</p>}
      <details className="schema">
        <summary>JSON Schema</summary>
        <Payload value={schema} />
      </details>
    </>
  );
}
