/** What a new flow begins with: small, valid, and each part of it is something to change. */
export const TEMPLATE = `flow: my-flow
description: Greets by name, in two tasks.

input:
  name: {type: string, default: world}

tasks:
  greet:
    value: "Hello, \${ input.name }"
  shout:
    depends_on: [greet]
    value: "\${ upper(greet) }!"

output: "\${ shout }"
`;
