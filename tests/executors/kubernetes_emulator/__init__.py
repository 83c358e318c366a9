"""The part of the Kubernetes API that the executor uses, in memory: for machines that have no kube-apiserver.

    status.py       errors as the API gives them
    resources.py    kinds and paths
    schema.py       bodies by the API's own schemas (kubernetes-validate); a field that they do not have is refused
    rules.py        what the API checks beyond schemas: names, labels, quantities, ranges
    selectors.py    label selectors
    defaults.py     what is filled in at creation
    store.py        objects, their versions, and a bounded history for watches
    api.py          create, get, list, patch, delete, bind
    watch.py        events of a watch
    controllers.py  Jobs make pods; the garbage collector; time to live
    server.py       HTTP

It behaves as version 1.20, with which tests/executors/kubernetes/test_emulator.py compares it, and differs from it in this:

- Schemas are those of SCHEMA_VERSION, and unknown fields are refused (later versions do so with `fieldValidation=Strict`); 1.20 drops them.
- It has no PUT, no deletion of collections, no patches other than merge patches, no dry runs and
  no field selectors: it refuses them.
"""
