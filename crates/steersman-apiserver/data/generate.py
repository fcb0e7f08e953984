#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes `columns.txt`, `definitions.txt`, `descriptions.json.gz`, `messages.txt`, `resources.txt` and `rbac.txt` from the Go modules of one Kubernetes release.

    go mod download k8s.io/{kubernetes@v1.37.1,api@v0.37.1,apimachinery@v0.37.1,apiextensions-apiserver@v0.37.1,kube-aggregator@v0.37.1}
    python3 generate.py "$(go env GOMODCACHE)" 1.37.1

`definitions.txt`: one OpenAPI definition per line, `name<TAB>schema`, without descriptions. `x-go` is added from the
Go structs, since it decides what a built-in object looks like after a round trip through the real server:
`always` (written even if empty), `null` (a pointer, written as null), `nonzero` (dropped if zero); absent means a pointer, kept as it was sent.
`x-inline` names the definitions that Go embeds.

`resources.txt`: one JSON object per line for each resource of a stable (non alpha or beta) version.
`descriptions.json.gz`: what `definitions.txt` leaves out for people, `{definition: {field: text}}`, its own text under ''.
`messages.txt`: the protobuf form of each definition, `name<TAB>number:field:type;…`; a type is that of protobuf or a
definition, after `[]` in a list and `{}` in a map of strings; a field without a name is embedded.
`columns.txt`: the columns of tables, `resource<TAB>columns`, for the kinds that this server knows how to print.
`rbac.txt`: the roles and bindings that the real server makes when it starts.
"""
import glob, gzip, json, os, re, sys

cache, version = sys.argv[1], sys.argv[2]
minor = version.split('.', 1)[1]
root = lambda m, v: os.path.join(cache, 'k8s.io', f'{m}@v{v}')
kube = root('kubernetes', version)
stable = re.compile(r'^v\d+$')

PREFIXES = [
    (root('api', '0.' + minor), 'io.k8s.api.', ''),
    (root('apimachinery', '0.' + minor), 'io.k8s.apimachinery.pkg.', 'pkg/'),
    (root('apiextensions-apiserver', '0.' + minor), 'io.k8s.apiextensions-apiserver.pkg.', 'pkg/'),
    (root('kube-aggregator', '0.' + minor), 'io.k8s.kube-aggregator.pkg.', 'pkg/'),
]
STRUCT = re.compile(r'^type (\w+) struct \{$(.*?)^\}$', re.M | re.S)
FIELD = re.compile(r'^\t(?:(\w+) +)?([*\[\]\w.]+(?:\[\w+\][\w.\[\]*]+)?)\s+`[^`]*?json:"([^"]*)"')


def go_fields():
    """definition name -> {json name: (pointer, options)}, embedded structs under the key ''."""
    out = {}
    for base, prefix, strip in PREFIXES:
        for path in glob.glob(f'{base}/{strip}**/*.go', recursive=True):
            name = os.path.basename(path)
            if not name.startswith('types') or name.endswith('_test.go') or 'doc_generated' in name:
                continue
            package = os.path.dirname(os.path.relpath(path, base))[len(strip):].replace('/', '.')
            for struct, body in STRUCT.findall(open(path).read()):
                fields = {}
                for line in body.splitlines():
                    m = FIELD.match(line)
                    if not m:
                        continue
                    go_type, tag = m.group(2), m.group(3).split(',')
                    if tag[0] == '' and m.group(1) is None:
                        fields.setdefault('', []).append(go_type)
                    elif tag[0] not in ('', '-'):
                        fields[tag[0]] = (go_type, tag[1:])
                out[f'{prefix}{package}.{struct}'] = fields
    return out


SCALAR = {'string', 'integer', 'number', 'boolean', 'array'}


def flag(definition, prop, go):
    go_type, options = go
    if go_type.startswith('*'):
        return None if 'omitempty' in options or 'omitzero' in options else 'null'
    if 'omitzero' in options:
        return 'nonzero'
    if 'omitempty' not in options:
        return 'always'
    is_map = go_type.startswith('map') or definition.get('additionalProperties') is not None
    if prop.get('type') in SCALAR or is_map or prop.get('additionalProperties') is not None:
        # A struct that is rendered as a string (Time, Quantity) is not dropped by omitempty.
        return 'nonzero'
    if go_type in ('ResourceList', 'ExtraValue', 'v1.ResourceList', 'FinalizerName', 'LabelSet'):
        return 'nonzero'
    if go_type in ('JSON', 'JSONSchemaDefinitions', 'JSONSchemaDependencies'):
        return 'nonzero'
    return 'always'


def slim(schema):
    schema = {k: v for k, v in schema.items() if k not in ('description', 'x-kubernetes-group-version-kind')}
    if list(schema.get('allOf', [])) and len(schema['allOf']) == 1 and '$ref' in schema['allOf'][0]:
        schema['$ref'] = schema.pop('allOf')[0]['$ref']
    if '$ref' in schema:
        schema['$ref'] = schema['$ref'].rsplit('/', 1)[1]
    if schema.get('default') in ({}, '', 0, False, None):
        schema.pop('default', None)
    for key in ('items', 'additionalProperties'):
        if isinstance(schema.get(key), dict):
            schema[key] = slim(schema[key])
    if 'properties' in schema:
        schema['properties'] = {k: slim(v) for k, v in schema['properties'].items()}
    return schema


def main():
    definitions, kinds, texts = {}, {}, {}
    for path in sorted(glob.glob(f'{kube}/api/openapi-spec/v3/*_openapi.json')):
        for name, schema in json.load(open(path)).get('components', {}).get('schemas', {}).items():
            for gvk in schema.get('x-kubernetes-group-version-kind', []):
                kinds.setdefault((gvk['group'], gvk['version'], gvk['kind']), name)
            definitions[name] = slim(schema)
            described = {field: prop['description'] for field, prop in schema.get('properties', {}).items() if 'description' in prop}
            texts[name] = {**({'': schema['description']} if 'description' in schema else {}), **described}
    fields = go_fields()

    def embedded(name):
        """All fields of a Go struct, those of embedded structs included."""
        own = fields.get(name, {})
        package = name.rsplit('.', 1)[0]
        out = {}
        for go_type in own.get('', []):
            go_type = go_type.lstrip('*')
            for candidate in (f'{package}.{go_type}', f'io.k8s.api.core.v1.{go_type.split(".")[-1]}'):
                if candidate in fields:
                    out.update(embedded(candidate))
                    break
        out.update({k: v for k, v in own.items() if k})
        return out

    missing = []
    for name, schema in definitions.items():
        go = embedded(name)
        for prop_name, prop in schema.get('properties', {}).items():
            if prop_name in ('apiVersion', 'kind', 'metadata') and prop_name not in go:
                continue
            if prop_name not in go:
                missing.append(f'{name}.{prop_name}')
                continue
            target = definitions.get(prop.get('$ref', ''), prop)
            mark = flag(target, {**prop, **({'type': target['type']} if 'type' in target and '$ref' in prop and target['type'] in SCALAR and target.get('format') not in ('date-time',) and not prop['$ref'].endswith(('Quantity',)) else {})}, go[prop_name])
            if mark:
                prop['x-go'] = mark
    if missing:
        print(len(missing), 'properties without a Go field:', missing, file=sys.stderr)

    rows, roots = [], {'io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta', 'io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions'}
    for path in ('api__v1.json', 'aggregated_v2.json'):
        document = json.load(open(f'{kube}/api/discovery/{path}'))
        if path == 'api__v1.json':
            groups = [('', [('v1', legacy(document))])]
        else:
            groups = [(g['metadata'].get('name', ''), [(v['version'], v['resources']) for v in g['versions']]) for g in document['items']]
        for group, versions in groups:
            if group == '' and path != 'api__v1.json':
                continue
            for v, resources in versions:
                if not stable.match(v):
                    continue
                for r in resources:
                    kind = r['responseKind']
                    definition = kinds.get((kind['group'] or group, kind['version'] or v, kind['kind']))
                    if definition:
                        roots.add(definition)
                    row = {
                        'group': group, 'version': v, 'resource': r['resource'], 'kind': kind['kind'],
                        'namespaced': r['scope'] == 'Namespaced', 'singular': r['singularResource'],
                        'verbs': sorted(r['verbs']), 'definition': definition,
                    }
                    for key in ('shortNames', 'categories'):
                        if r.get(key):
                            row[key] = r[key]
                    subs = []
                    for s in r.get('subresources', []):
                        sub = {'name': s['subresource'], 'verbs': sorted(s['verbs'])}
                        k = s['responseKind']
                        sub['kind'] = k['kind']
                        if k['group']:
                            sub['group'] = k['group']
                        if k['version']:
                            sub['version'] = k['version']
                        d = kinds.get((k['group'] or group, k['version'] or v, k['kind']))
                        if d:
                            roots.add(d)
                            sub['definition'] = d
                        subs.append(sub)
                    if subs:
                        row['subresources'] = subs
                    rows.append(row)

    reachable, queue = set(), list(roots)
    while queue:
        name = queue.pop()
        if name in reachable or name not in definitions:
            continue
        reachable.add(name)
        queue += re.findall(r'"\$ref": "([^"]+)"', json.dumps(definitions[name]))
    dump = lambda v: json.dumps(v, sort_keys=True, separators=(',', ':'))
    with open('definitions.txt', 'w') as f:
        for name in sorted(reachable):
            f.write(f'{name}\t{dump(definitions[name])}\n')
    with open('resources.txt', 'w') as f:
        for row in rows:
            f.write(dump(row) + '\n')
    with open('descriptions.json.gz', 'wb') as f:
        f.write(gzip.compress(dump({name: texts[name] for name in sorted(reachable)}).encode(), 9, mtime=0))
    with open('messages.txt', 'w') as f:
        known, wanted, queue = messages(definitions), set(), list(roots)
        while queue:
            name = queue.pop()
            if name in known and name not in wanted:
                wanted.add(name)
                queue += [kind.lstrip('[]{}') for _, _, kind in (field.split(':') for field in known[name])]
        for name in sorted(wanted):
            f.write(f'{name}\t' + ';'.join(known[name]) + '\n')
    print(len(reachable), 'definitions,', len(rows), 'resources')


def messages(definitions):
    """definition name -> ['number:field:type']"""
    out = {}
    turned = lambda name: re.sub(r'^k8s\.io\.', 'io.k8s.', name)
    for base, _, _ in PREFIXES:
        for path in glob.glob(f'{base}/**/generated.proto', recursive=True):
            text = open(path).read()
            package = re.search(r'^package ([\w.\-]+);', text, re.M).group(1).replace('apiextensions_apiserver', 'apiextensions-apiserver').replace('kube_aggregator', 'kube-aggregator')
            for name, body in re.findall(r'^message (\w+) \{$(.*?)^\}$', text, re.M | re.S):
                definition = turned(f'{package}.{name}')
                known = definitions.get(definition, {})
                fields = []
                for label, kind, field, number in re.findall(r'^  (optional |repeated |)([\w.<>, \-]+?) (\w+) = (\d+);', body, re.M):
                    mark = '[]' if label.strip() == 'repeated' else ''
                    if kind.startswith('map<'):
                        mark, kind = '{}', kind[4:-1].split(',')[1].strip()
                    if kind.startswith('.'):
                        kind = turned(kind[1:].replace('apiextensions_apiserver', 'apiextensions-apiserver').replace('kube_aggregator', 'kube-aggregator'))
                    elif kind[0].isupper():
                        kind = turned(f'{package}.{kind}')
                    # Protobuf's name may differ from that of JSON in case, `$` and dashes.
                    same = lambda name: name.lower().replace('-', '').lstrip('$') == field.lower()
                    field = next((name for name in known.get('properties', {}) if same(name)), field)
                    inline = known.get('properties') and field not in known['properties'] and kind.startswith('io.k8s.')
                    fields.append(f'{number}:{"" if inline else field}:{mark}{kind}')
                out[definition] = fields
    return out


PRINTED = {
    'pod': 'pods', 'podDisruptionBudget': 'poddisruptionbudgets.policy', 'replicaSet': 'replicasets.apps', 'daemonSet': 'daemonsets.apps',
    'job': 'jobs.batch', 'cronJob': 'cronjobs.batch', 'service': 'services', 'ingress': 'ingresses.networking.k8s.io',
    'statefulSet': 'statefulsets.apps', 'endpoint': 'endpoints', 'endpointSlice': 'endpointslices.discovery.k8s.io', 'node': 'nodes',
    'event': 'events', 'namespace': 'namespaces', 'secret': 'secrets', 'serviceAccount': 'serviceaccounts',
    'persistentVolume': 'persistentvolumes', 'persistentVolumeClaim': 'persistentvolumeclaims', 'deployment': 'deployments.apps',
    'horizontalPodAutoscaler': 'horizontalpodautoscalers.autoscaling', 'configMap': 'configmaps',
    'roleBindings': 'rolebindings.rbac.authorization.k8s.io', 'clusterRoleBindings': 'clusterrolebindings.rbac.authorization.k8s.io',
    'lease': 'leases.coordination.k8s.io', 'storageClass': 'storageclasses.storage.k8s.io',
}


def columns():
    """`columns.txt` from the printers of the real server."""
    source = open(f'{kube}/pkg/printers/internalversion/printers.go').read()
    packages = {'apiv1': 'core.v1', 'appsv1': 'apps.v1', 'batchv1': 'batch.v1', 'autoscalingv2': 'autoscaling.v2', 'storagev1': 'storage.v1', 'rbacv1beta1': 'rbac.v1',
                'coordinationv1': 'coordination.v1', 'discoveryv1beta1': 'discovery.v1', 'discoveryv1': 'discovery.v1'}
    texts = json.loads(gzip.decompress(open('descriptions.json.gz', 'rb').read()))

    def description(expression):
        literal = re.match(r'^"(.*)"$', expression)
        if literal:
            return literal.group(1)
        package, kind, field = re.match(r'(\w+)\.([\w.{}]+?)\{\}(?:\.InvolvedObject)?\.SwaggerDoc\(\)\["([\w]*)"\]', expression).groups()
        if 'InvolvedObject' in expression:
            kind = 'ObjectReference'
        name = f'io.k8s.apimachinery.pkg.apis.meta.v1.{kind}' if package == 'metav1' else f'io.k8s.api.{packages[package]}.{kind}'
        return texts.get(name, {}).get(field, '')

    with open('columns.txt', 'w') as f:
        for variable, resource in sorted(PRINTED.items(), key=lambda pair: pair[1]):
            block = re.search(r'\t%sColumnDefinitions := \[\]metav1.TableColumnDefinition\{\n(.*?)\n\t\}' % variable, source, re.S).group(1)
            out = []
            for line in block.splitlines():
                field = lambda key: (re.search(key + r': ("[^"]*"|\d+)', line) or [None, ''])[1].strip('"')
                out.append({'name': field('Name'), 'type': field('Type'), 'format': field('Format'), 'priority': int(field('Priority') or 0),
                            'description': description(re.search(r'Description: (.*)\},$', line).group(1))})
            f.write(f'{resource}\t' + json.dumps(out, sort_keys=True, separators=(',', ':')) + '\n')


def policy():
    """`rbac.txt`: the bootstrap roles and bindings, `resource<TAB>object`."""
    import yaml  # PyYAML, needed for this part only
    folder = f'{kube}/plugin/pkg/auth/authorizer/rbac/bootstrappolicy/testdata'
    roles = yaml.safe_load(open(f'{folder}/cluster-roles.yaml'))['items']
    bindings = yaml.safe_load(open(f'{folder}/cluster-role-bindings.yaml'))['items']
    for role in roles:
        role['metadata'].pop('creationTimestamp', None)
    with open('rbac.txt', 'w') as f:
        for resource, objects in (('clusterroles', roles), ('clusterrolebindings', bindings)):
            for o in objects:
                o['metadata'].pop('creationTimestamp', None)
                o = {k: v for k, v in o.items() if k not in ('apiVersion', 'kind')}
                f.write(f'{resource}\t' + json.dumps(o, sort_keys=True, separators=(',', ':')) + '\n')
    print(len(roles), 'roles,', len(bindings), 'bindings')


def legacy(document):
    """The legacy resource list in the shape of aggregated discovery."""
    out = {}
    for r in document['resources']:
        name, _, sub = r['name'].partition('/')
        kind = {'group': r.get('group', ''), 'version': r.get('version', ''), 'kind': r['kind']}
        if sub:
            if name not in out:
                continue
            out[name].setdefault('subresources', []).append({'subresource': sub, 'verbs': r['verbs'], 'responseKind': kind})
        else:
            out[name] = {
                'resource': name, 'responseKind': kind, 'scope': 'Namespaced' if r['namespaced'] else 'Cluster',
                'singularResource': r['singularName'], 'verbs': r['verbs'],
                'shortNames': r.get('shortNames', []), 'categories': r.get('categories', []),
            }
    return list(out.values())


main()
columns()
policy()
