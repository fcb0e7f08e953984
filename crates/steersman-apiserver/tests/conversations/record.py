#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the conversations of this folder with a real kube-apiserver and writes down what it answers.

    python3 record.py https://127.0.0.1:PORT CA_FILE [NAME…]

`NAME.http` holds the requests, `NAME.answers` what the real server said: one JSON object per line. The server must be
new (RBAC on, no controller manager) and know the tokens admin-token (system:masters), alice-token and bob-token.

A conversation is a list of steps that begin with `== title`. A step has directives (`@wait SECONDS` before the
request, for the recording only; `@as USER`), a request line, headers, an empty line and a body. `{{title:/pointer}}`
stands for a value in the answer to an earlier step.
"""
import json, os, re, ssl, sys, time, urllib.request, urllib.error

KEPT = ('content-type', 'warning', 'retry-after')


def steps(text):
    for block in re.split(r'^== ', text, flags=re.M)[1:]:
        title, _, rest = block.partition('\n')
        lines = rest.split('\n')
        step = {'title': title.strip(), 'wait': 0.0, 'as': 'admin', 'headers': {}}
        while lines and (lines[0].startswith('@') or lines[0].startswith('#')):
            word, _, value = lines.pop(0).partition(' ')
            if word == '@wait':
                step['wait'] = float(value)
            elif word == '@as':
                step['as'] = value.strip()
        step['method'], step['path'] = lines.pop(0).split(' ', 1)
        while lines and lines[0].strip():
            key, _, value = lines.pop(0).partition(':')
            step['headers'][key.strip()] = value.strip()
        step['body'] = '\n'.join(lines).strip()
        yield step


def substitute(text, answers):
    def value(match):
        body = json.loads(answers[match.group(1)])
        for part in match.group(2).split('/')[1:]:
            body = body[int(part)] if isinstance(body, list) else body[part]
        return body if isinstance(body, str) else json.dumps(body)
    return re.sub(r'\{\{([^:{}]+):([^{}]*)\}\}', value, text)


def main():
    url, ca = sys.argv[1:3]
    here = os.path.dirname(os.path.abspath(__file__))
    names = sys.argv[3:] or sorted(f[:-5] for f in os.listdir(here) if f.endswith('.http'))
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False
    for name in names:
        answers, out = {}, []
        for step in steps(open(f'{here}/{name}.http').read()):
            time.sleep(step['wait'])
            headers = {'User-Agent': 'tester/1.0', 'Authorization': f'Bearer {step["as"]}-token', **step['headers']}
            body = substitute(step['body'], answers).encode() or None
            if body and 'Content-Type' not in headers:
                headers['Content-Type'] = 'application/json'
            request = urllib.request.Request(url + substitute(step['path'], answers), data=body, headers=headers, method=step['method'])
            for _ in range(10):
                try:
                    response = urllib.request.urlopen(request, context=context, timeout=60)
                except urllib.error.HTTPError as error:
                    response = error
                # A cache that is still filling asks to be tried again, as clients do.
                if response.status != 429 or b'initializing' not in (peeked := response.read()):
                    break
                time.sleep(1)
            text = (peeked if response.status == 429 else response.read()).decode()
            # The address of the machine is nobody's business.
            text = re.sub(r'("serverAddress": ?)"[^"]*"', r'\1"127.0.0.1:443"', text)
            answers[step['title']] = text
            kept = [[k.lower(), v] for k, v in response.headers.items() if k.lower() in KEPT]
            out.append({'title': step['title'], 'code': response.status, 'headers': sorted(kept), 'body': text})
        with open(f'{here}/{name}.answers', 'w') as f:
            for answer in out:
                f.write(json.dumps(answer, sort_keys=True) + '\n')
        print(name, len(out), 'answers')


main()
