// SPDX-License-Identifier: Apache-2.0

// Package chart renders our Helm chart with the subset of Helm's language that the chart uses: it
// generates the manifests in configs/kubernetes, and tests render the chart with their own values.
// It is not Helm: features that the chart does not use are missing.
package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"gopkg.in/yaml.v3"
)

// Release is Helm's term for an installation of a chart.
type Release struct{ Name, Namespace string }

// templates are the chart's templates that produce objects, in the order in which they appear in
// the manifests.
var templates = []string{"rbac.yaml", "policy.yaml", "config.yaml", "daemonset.yaml", "controller.yaml", "leave.yaml"}

// Render returns all objects of the chart in dir, as one file for kubectl apply -f, or only the
// objects of some templates. values are merged into the chart's values.
func Render(dir string, release Release, values map[string]any, only ...string) (string, error) {
	var all, about map[string]any
	if err := read(filepath.Join(dir, "values.yaml"), &all); err != nil {
		return "", err
	}
	if err := read(filepath.Join(dir, "Chart.yaml"), &about); err != nil {
		return "", err
	}
	merge(all, values)
	files, err := filepath.Glob(filepath.Join(dir, "templates", "*"))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("%s/templates: no files, %v", dir, err)
	}
	t := template.New("chart").Option("missingkey=error")
	t.Funcs(functions(t))
	slices.Sort(files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		if _, err := t.New(filepath.Base(file)).Parse(string(text)); err != nil {
			return "", err
		}
	}
	data := map[string]any{"Values": all, "Release": release, "Chart": chartOf(about)}
	var out strings.Builder
	for _, file := range templates {
		if len(only) > 0 && !slices.Contains(only, file) {
			continue
		}
		var b bytes.Buffer
		if err := t.ExecuteTemplate(&b, file, data); err != nil {
			return "", err
		}
		if text := strings.TrimSpace(b.String()); text != "" {
			fmt.Fprintf(&out, "---\n%s\n", text)
		}
	}
	return out.String(), nil
}

// chartOf returns Chart.yaml as templates see it: with capitalized keys.
func chartOf(about map[string]any) map[string]any {
	seen := map[string]any{}
	for key, value := range about {
		seen[strings.ToUpper(key[:1])+key[1:]] = value
	}
	return seen
}

// functions returns the Helm functions that the chart uses.
func functions(t *template.Template) template.FuncMap {
	indent := func(by int, text string) string {
		pad := strings.Repeat(" ", by)
		return pad + strings.ReplaceAll(text, "\n", "\n"+pad)
	}
	return template.FuncMap{
		"include": func(name string, data any) (string, error) {
			var b bytes.Buffer
			err := t.ExecuteTemplate(&b, name, data)
			return b.String(), err
		},
		"nindent": func(by int, text string) string { return "\n" + indent(by, text) },
		"toYaml": func(value any) (string, error) {
			var b bytes.Buffer
			e := yaml.NewEncoder(&b)
			e.SetIndent(2)
			err := e.Encode(value)
			return strings.TrimSuffix(b.String(), "\n"), err
		},
		"toPrettyJson": func(value any) (string, error) {
			text, err := json.MarshalIndent(value, "", "  ")
			return string(text), err
		},
		"toJson": func(value any) (string, error) {
			text, err := json.Marshal(value)
			return string(text), err
		},
		"dig":     dig,
		"trimAll": func(cut, text string) string { return strings.Trim(text, cut) },
		"regexReplaceAll": func(pattern, text, by string) string {
			return regexp.MustCompile(pattern).ReplaceAllString(text, by)
		},
		"default": func(otherwise, value any) any {
			if value == nil || value == "" {
				return otherwise
			}
			return value
		},
	}
}

// dig returns the value at a path of keys in a map, or else the argument that precedes the map.
func dig(args ...any) (any, error) {
	if len(args) < 3 {
		return nil, fmt.Errorf("dig: %d arguments, want keys, a default and a map", len(args))
	}
	value, otherwise := args[len(args)-1], args[len(args)-2]
	for _, key := range args[:len(args)-2] {
		m, isMap := value.(map[string]any)
		name, isName := key.(string)
		if !isMap || !isName {
			return nil, fmt.Errorf("dig %v: %v is not a map, or the key is not a string", key, value)
		}
		var there bool
		if value, there = m[name]; !there {
			return otherwise, nil
		}
	}
	return value, nil
}

func read(file string, into any) error {
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// merge merges more into values, as Helm does: maps are merged key by key, and other values are
// replaced.
func merge(values, more map[string]any) {
	for key, value := range more {
		below, isMap := value.(map[string]any)
		there, wasMap := values[key].(map[string]any)
		if isMap && wasMap {
			merge(there, below)
		} else {
			values[key] = value
		}
	}
}
