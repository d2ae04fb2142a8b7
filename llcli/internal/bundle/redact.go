// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"sync"
)

// hidden replaces redacted text.
const hidden = "(redacted)"

// maxLine limits a line, in bytes. Longer lines are not meant to be read.
const maxLine = 8 << 10

// Rules describe the redaction; they are included in every archive.
var Rules = []string{
	"the values of keys whose names suggest secrets (password, passwd, passphrase, pwd, secret, token, credential, authorization, auth, cookie, psk, salt, otp, or … key), in YAML, JSON, environment, URL and command line, over several lines, too",
	"private keys in PEM, whole",
	"user and password in URLs",
	"Bearer and Basic credentials",
	"text in the form of a token or key: JWT, cloud and forge tokens, WireGuard and age keys, password hashes, hexadecimal numbers of 32 bytes and more",
}

// lazy returns a regular expression that is compiled when it is used for the first time: most
// commands use none of this package.
func lazy(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// secretWords are in the names of secrets: some as a part of a name, some only as a separate word,
// because they have other meanings as parts.
var (
	secretWords = lazy(`(?i)password|passwd|passphrase|pgpass|secret|token|credential|authorization|bearer|cookie|` +
		`(^|[^a-z])(pass|pwd|pw|key|psk|auth|salt|otp)[0-9]*([^a-z0-9]|$)|(private|public|access|api|session|encryption|signing|shared|ssh|tls|wg|hmac|account|master|license)[-_.]?key`)
	secretCamel = lazy(`[a-z](Pass|Pwd|Key|Psk|Auth|Salt|Otp)([A-Z0-9]|$)`)
)

func secretName(name string) bool {
	return secretWords().MatchString(name) || secretCamel().MatchString(name)
}

// shapes match secrets that are recognized by their form.
var shapes = []func() *regexp.Regexp{
	lazy(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----(?s:.*?)(-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----|\z)`),
	lazy(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(\.[A-Za-z0-9_-]*)?`),
	lazy(`\b(AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b`),
	lazy(`\b(gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk_live_|rk_live_|sk-|npm_|dckr_pat_|hvs\.|AIza)[A-Za-z0-9_-]{16,}`),
	lazy(`\bAGE-SECRET-KEY-1[0-9A-Z]{20,}`),
	lazy(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`),
	lazy(`\$(1|2[aby]|5|6|7|y|gy|argon2[a-z]*|scrypt|pbkdf2[-a-z0-9]*)\$[^\s"':,]{16,}`),
	lazy(`\b(0x)?[0-9a-fA-F]{64,}\b`),
}

var (
	// base64Key matches a key of 32 bytes, such as WireGuard's; the text around it stays.
	base64Key = lazy(`(^|[^A-Za-z0-9+/])[A-Za-z0-9+/]{43}=($|[^A-Za-z0-9+/=])`)

	userInfo   = lazy(`([A-Za-z][A-Za-z0-9+.-]*://)[^/\s"'@]+@`)
	credential = lazy(`(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}`)
	// option matches a word of a command line whose value is the next word.
	option      = lazy(`(?:^|[\s"'\[,])(--?[A-Za-z][A-Za-z0-9_-]*)(?:\s+|["'],\s*["'])`)
	optionValue = lazy(`^[^\s"'-][^\s"',]*`)
	// pair matches a name within a line, up to its value; name and value may be in quotes, or in
	// escaped quotes.
	pair      = lazy(`([A-Za-z0-9_.-]+)\\*["']?\s*([:=])\s*`)
	pairValue = lazy(`^(\\+"[^"\\]*(?:\\+")?|"(?:\\.|[^"\\])*"?|'[^']*'?|[^\s&;,"'\\)}\]]+)`)
	// assignment matches a name and a value within one pair of quotes.
	assignment = lazy(`(["'])([A-Za-z0-9_.-]+)=([^"']*)(["'])`)
	// yamlKey matches a line of YAML, or a line that looks like YAML.
	yamlKey = lazy(`^([#\s]*(?:-\s+)*)["']?([A-Za-z0-9_./ -]*?)["']?\s*:(?:\s+(.*)|)$`)
)

// redact removes secrets from text of any kind.
func redact(text string) string {
	for _, shape := range shapes {
		text = shape().ReplaceAllString(text, hidden)
	}
	text = base64Key().ReplaceAllString(text, "${1}"+hidden+"${2}")
	text = userInfo().ReplaceAllString(text, "${1}"+hidden+"@")
	text = credential().ReplaceAllString(text, "${1} "+hidden)
	var out strings.Builder
	var block yamlBlock
	for line := range strings.Lines(text) {
		end := ""
		if strings.HasSuffix(line, "\n") {
			line, end = line[:len(line)-1], "\n"
		}
		if len(line) > maxLine { // the next lines might be the rest of a secret
			line = line[:maxLine] + " (cut off)"
		}
		out.WriteString(block.line(line) + end)
	}
	return out.String()
}

// yamlBlock follows the value of a secret over the lines that belong to it.
type yamlBlock struct {
	inside bool
	indent int
	items  bool   // a list may have the same indentation as its key
	closer string // of a quoted or flow value that continues; empty: none
}

func (b *yamlBlock) line(line string) string {
	indent := len(line) - len(strings.TrimLeft(line, " \t"))
	if b.inside {
		trimmed := strings.TrimSpace(line)
		switch {
		case b.closer != "":
			b.closed(line)
			return hidden
		case trimmed == "":
			return line
		case indent > b.indent || b.items && indent == b.indent && (trimmed == "-" || strings.HasPrefix(trimmed, "- ")):
			return line[:indent] + hidden
		}
		b.inside = false
	}
	if m := yamlKey().FindStringSubmatch(line); m != nil && secretName(m[2]) {
		value := strings.TrimSpace(m[3])
		b.inside, b.indent, b.items, b.closer = true, indent+strings.Count(m[1], "- ")*2, value == "", ""
		if value != "" {
			b.opened(value)
			return line[:len(line)-len(m[3])] + hidden
		}
		return line
	}
	return inline(line)
}

// opened records the closer of a value that does not end on its line.
func (b *yamlBlock) opened(value string) {
	closers := map[byte]string{'"': `"`, '\'': `'`, '[': "]", '{': "}"}
	closer := closers[value[0]]
	if closer != "" && !strings.Contains(value[1:], closer) {
		b.closer = closer
	}
}

func (b *yamlBlock) closed(line string) {
	if strings.Contains(line, b.closer) {
		b.closer = ""
	}
}

// inline removes secrets from one line.
func inline(line string) string {
	line = assignment().ReplaceAllStringFunc(line, func(found string) string {
		if m := assignment().FindStringSubmatch(found); secretName(m[2]) {
			return m[1] + m[2] + "=" + hidden + m[4]
		}
		return found
	})
	line = replace(pair(), pairValue(), line)
	for at := strings.Index(line, wordsFollow); at >= 0; at = strings.Index(line, wordsFollow) {
		line = line[:at] + afterWords(line[:at], line[at+len(wordsFollow):])
	}
	return replace(option(), optionValue(), line)
}

// wordsFollow marks a value without quotes that may continue over several words.
const wordsFollow = "\x00"

// afterWords returns the text after such a value: within braces, the value ends at the closing
// brace or at a comma; elsewhere, it ends with the line.
func afterWords(before, rest string) string {
	if strings.Count(before, "{") <= strings.Count(before, "}") {
		return ""
	}
	at := strings.IndexAny(rest, ",}]"+wordsFollow)
	if at < 0 {
		return ""
	}
	return rest[at:]
}

// replace replaces the values that follow the names of secrets. In the pattern name, group 1 is the
// name, and group 2, if it exists, is the separator before the value.
func replace(name, value *regexp.Regexp, line string) string {
	var out strings.Builder
	for {
		at := name.FindStringSubmatchIndex(line)
		if at == nil {
			return out.String() + line
		}
		separator := ""
		if len(at) > 4 {
			separator = line[at[4]:at[5]]
		}
		found := secretName(strings.TrimLeft(line[at[2]:at[3]], "-"))
		out.WriteString(line[:at[1]])
		line = line[at[1]:]
		if !found {
			continue
		}
		if v := value.FindString(line); v != "" {
			out.WriteString(hidden)
			if separator == ":" && !strings.ContainsAny(v[:1], `"'\`) {
				out.WriteString(wordsFollow)
			}
			line = line[len(v):]
		}
	}
}

// redactJSON redacts JSON text by its structure, so that it stays valid JSON.
func redactJSON(text []byte) []byte {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return []byte(redact(string(text)))
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(redactValue(value)); err != nil {
		return []byte(redact(string(text)))
	}
	return out.Bytes()
}

func redactValue(value any) any {
	switch v := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, x := range v {
			if secretName(key) && !harmless(x) {
				out[key] = hidden
			} else {
				out[redact(key)] = redactValue(x)
			}
		}
		// {"name": "PASSWORD", "value": "x"}, as in lists of variables.
		if name, ok := v["name"].(string); ok && secretName(name) && v["value"] != nil {
			out["value"] = hidden
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = redactValue(x)
		}
		return out
	case string:
		return redact(v)
	default:
		return v
	}
}

// harmless reports whether a value cannot contain a secret.
func harmless(value any) bool {
	switch value.(type) {
	case nil, bool:
		return true
	}
	return false
}
